"""The pool as programs use it: several callers at once, after a fork, and while the process exits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SCRIPT = """
import ctypes, os, sys, threading, time
import numpy as np
import llvmlite.binding as llvm
from ferrule.ir.types import Tensor, f32
from ferrule.program import *

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
module = llvm.parse_assembly('''
define void @double(ptr %p, i64 %begin, i64 %end) {
  %a = load ptr, ptr %p
  %p1 = getelementptr ptr, ptr %p, i64 1
  %b = load ptr, ptr %p1
  br label %loop
loop:
  %i = phi i64 [%begin, %0], [%next, %loop]
  %from = getelementptr float, ptr %a, i64 %i
  %x = load float, ptr %from
  %y = fadd float %x, %x
  %to = getelementptr float, ptr %b, i64 %i
  store float %y, ptr %to
  %next = add i64 %i, 1
  %done = icmp sge i64 %next, %end
  br i1 %done, label %exit, label %loop
exit:
  ret void
}''')
code = llvm.Target.from_default_triple().create_target_machine(opt=2, reloc="pic").emit_object(module)
n = 20000
program = Program(name="p", params=[Param(Tensor((n,), f32))], outputs=[Output(Tensor((n,), f32))], objects=[code],
    functions=[(0, "double")], slots=[Slot(PARAM, 0, 4 * n), Slot(OUTPUT, 0, 4 * n)],
    blocks=[[Launch(0, n, 1, (0, 1))]])
lib = ctypes.CDLL(sys.argv[1])
data, handle = program.serialize(), ctypes.c_void_p()
assert lib.ferrule_program_load(data, ctypes.c_size_t(len(data)), ctypes.byref(handle)) == 0

def run(times=1):
    for i in range(times):
        x, y = np.full(n, i, np.float32), np.zeros(n, np.float32)
        ins, outs = (ctypes.c_void_p * 1)(x.ctypes.data), (ctypes.c_void_p * 1)(y.ctypes.data)
        assert lib.ferrule_program_run(handle, ins, outs) == 0
        assert (y == 2 * i).all()

def forever():
    while True:
        run()

"""


def execute(native, body: str, threads: str) -> None:
    environment = {**os.environ, "FERRULE_NUM_THREADS": threads}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT + textwrap.dedent(body), str(native.path)],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stdout + done.stderr


@pytest.mark.parametrize("threads", ["1", "2", "7"])
def test_several_callers(native, threads):
    execute(
        native,
        """
        callers = [threading.Thread(target=run, args=(40,)) for _ in range(8)]
        [c.start() for c in callers]
        [c.join() for c in callers]
        print("fine")
        """,
        threads,
    )


@pytest.mark.parametrize("threads", ["2", "5"])
def test_child_of_a_fork_has_its_own_workers(native, threads):
    execute(
        native,
        """
        run()
        threading.Thread(target=forever, daemon=True).start()
        for _ in range(5):
            time.sleep(0.01)
            child = os.fork()
            if child == 0:
                import signal
                signal.alarm(20)
                run(20)
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        print("fine")
        sys.stdout.flush()
        os._exit(0)
        """,
        threads,
    )


def test_exit_while_workers_are_busy(native):
    execute(
        native,
        """
        for _ in range(3):
            threading.Thread(target=forever, daemon=True).start()
        time.sleep(0.05)
        print("fine")
        """,
        "4",
    )


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a worker that stays awake needs a processor of its own")
def test_worker_stays_awake_between_calls(native):
    """Where calls come one soon after the other the worker is not put to sleep, and woken, for each of them."""
    execute(
        native,
        """
        def sleeps():
            total = 0
            for task in os.listdir("/proc/self/task"):
                text = open(f"/proc/self/task/{task}/status").read()
                if "ferrule-" in text:
                    total += int(text.split("\\nvoluntary_ctxt_switches:")[1].split()[0])
            return total

        x, y = np.zeros(n, np.float32), np.zeros(n, np.float32)
        ins, outs = (ctypes.c_void_p * 1)(x.ctypes.data), (ctypes.c_void_p * 1)(y.ctypes.data)
        def calls(count):
            for _ in range(count):
                lib.ferrule_program_run(handle, ins, outs)
                until = time.perf_counter() + 40e-6
                while time.perf_counter() < until:
                    pass

        least = 1000
        for attempt in range(5):  # the machine may be busy
            for _ in range(20):  # it does not stay awake for these, and forgets that soon
                calls(1)
                time.sleep(0.002)
            before = sleeps()
            calls(1000)
            least = min(least, sleeps() - before)
        assert least < 300, least
        print("fine")
        """,
        "2",
    )


# Each work waits 5 s at most for the others that were given to the pool at the same time.
TOGETHER = """
#include "thread_pool.h"
#include <unistd.h>
#include <atomic>
#include <chrono>
#include <cstdio>
using namespace ferrule;
struct Meeting {
  int expected;
  std::atomic<int> there{0}, gone{0}, alone{0};
  void Come() {
    auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    for (++there; there < expected; usleep(50))
      if (std::chrono::steady_clock::now() > deadline) { ++alone; break; }
    ++gone;
  }
};
int main() {
  ThreadPool& pool = ThreadPool::Global();
  auto task = [](void* meeting) { static_cast<Meeting*>(meeting)->Come(); };
  auto member = [](void* meeting, int64_t, int64_t) { static_cast<Meeting*>(meeting)->Come(); };
  for (int turn = 0; turn < 40; ++turn) {
    if (turn % 2) usleep(2000);  // the workers sleep
    int pause = turn / 2 % 4 * 40;
    Meeting tasks{2 + turn % 4};
    for (int i = 0; i < tasks.expected; ++i, usleep(pause)) pool.Schedule(task, &tasks);
    while (tasks.gone < tasks.expected) usleep(50);
    Meeting both{4};  // a task, and a team of three
    pool.Schedule(task, &both);
    usleep(pause);
    ThreadPool::Team* team = pool.StartTeam(3, member, &both);
    member(&both, 0, 1);
    pool.FinishTeam(team);
    while (both.gone < both.expected) usleep(50);
    if (tasks.alone || both.alone) return std::printf("turn %d: %d tasks, %d of a team and a task waited in vain\\n",
                                                      turn, tasks.alone.load(), both.alone.load()), 1;
  }
  std::puts("fine");
}
"""


# Who is called with which ranges: of threads that sleep, and of those that are awake.
RANGES = """
#include "thread_pool.h"
#include <unistd.h>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <set>
#include <thread>
#include <vector>
using namespace ferrule;
struct Seen {
  std::mutex mutex;
  std::vector<std::pair<int64_t, int64_t>> ranges;
  std::set<std::thread::id> threads;
  int64_t pause = 0;
  std::set<int64_t> sizes() {
    std::set<int64_t> all;
    for (auto [begin, end] : ranges) all.insert(end - begin);
    return all;
  }
};
void Body(void* p, int64_t begin, int64_t end) {
  auto& seen = *static_cast<Seen*>(p);
  auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(seen.pause);
  while (std::chrono::steady_clock::now() < until) continue;
  std::lock_guard lock(seen.mutex);
  seen.ranges.emplace_back(begin, end);
  seen.threads.insert(std::this_thread::get_id());
}
int main() {
  ThreadPool& pool = ThreadPool::Global();
  const int threads = pool.threads();
  auto run = [&](int64_t n, int64_t grain, int64_t least, int64_t pause, Seen& seen) {
    seen.pause = pause;
    pool.ParallelFor(n, grain, least, Body, &seen);
    std::set<std::pair<int64_t, int64_t>> sorted(seen.ranges.begin(), seen.ranges.end());
    int64_t at = 0;
    for (auto [begin, end] : sorted) {
      if (begin != at || end <= begin)
        return std::printf("%ld %ld %ld: %ld to %ld\\n", n, grain, least, begin, end), false;
      at = end;
    }
    if (at != n || sorted.size() != seen.ranges.size()) return std::printf("%ld of %ld\\n", at, n), false;
    return true;
  };
  for (int64_t n : {0, 1, 2, 3, 7, 16, 100, 4097})
    for (int64_t grain : {1, 2, 5, 12, 50, 5000})
      for (int64_t least : {int64_t{1}, grain / 4, grain}) {
        Seen seen;
        if (!run(n, grain, least, 0, seen)) return 1;
      }
  Seen halves;  // about equal parts, not a whole grain and the rest
  if (!run(16, 12, 12, 0, halves)) return 1;
  if (halves.sizes() != std::set<int64_t>{8}) return std::puts("not halves"), 1;
  bool asleep = false, shared = false;
  for (int turn = 0; turn < 50 && !(asleep && shared); ++turn) {
    Seen wake, few, alone;
    run(1000, 1, 1, 100, wake);
    run(64, 64, 4, 200, few);  // the others are awake: it is shared
    shared |= few.threads.size() == static_cast<size_t>(threads) && few.ranges.size() == static_cast<size_t>(threads);
    usleep(20000);
    run(64, 64, 4, 200, alone);  // nobody is woken for it
    asleep |= alone.ranges.size() == 1;
  }
  if (!asleep || !shared) return std::printf("asleep %d, shared %d\\n", asleep, shared), 1;
  std::puts("fine");
}
"""


def test_ranges(tmp_path):
    """They cover all; nobody is woken for little work, and whoever is awake has a part of it."""
    _run_source(tmp_path, RANGES, "2")


def _run_source(tmp_path, source: str, threads: str):
    compiler, native = shutil.which("g++"), Path(__file__).parents[2] / "native"
    if not compiler:
        pytest.skip("g++ is not installed: the pool is compiled into a program of its own")
    if not native.exists():
        pytest.skip("native/ is not here, as in an installed package: the pool is compiled into a program of its own")
    (tmp_path / "main.cc").write_text(source)
    sources = [tmp_path / "main.cc", native / "thread_pool.cc", native / "denormals.cc"]
    flags = ["-std=c++20", "-O1", "-w", f"-I{native}", "-pthread"]
    subprocess.run([compiler, *flags, *sources, "-o", tmp_path / "main"], check=True)
    environment = {**os.environ, "FERRULE_NUM_THREADS": threads}
    environment.pop("LD_PRELOAD", None)
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stdout + done.stderr


def test_workers_sleep_when_there_is_nothing_to_do(native):
    execute(
        native,
        """
        x, y = np.zeros(n, np.float32), np.zeros(n, np.float32)
        ins, outs = (ctypes.c_void_p * 1)(x.ctypes.data), (ctypes.c_void_p * 1)(y.ctypes.data)
        for _ in range(100):
            lib.ferrule_program_run(handle, ins, outs)
        time.sleep(0.01)
        before = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - before < 0.03
        print("fine")
        """,
        "4",
    )


def test_works_that_wait_for_each_other(tmp_path):
    """Each call reaches a worker of its own while there are some, also where they have not woken yet."""
    _run_source(tmp_path, TOGETHER, "8")
