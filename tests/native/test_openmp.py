"""Regions of OpenMP on the pool (native/openmp.cc), in a library that GNU's compiler makes."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import textwrap
from ast import literal_eval
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")

SOURCE = """
#include <omp.h>
#include <stdbool.h>
void GOMP_parallel_start(void (*)(void *), void *, unsigned);
void GOMP_parallel_end(void);
bool GOMP_loop_static_start(long, long, long, long, long *, long *);
bool GOMP_loop_static_next(long *, long *);
void GOMP_loop_end_nowait(void);

long total(long n) {  /* the compiler's own code for a region and a loop that is shared out */
  long sum = 0;
#pragma omp parallel for reduction(+ : sum)
  for (long i = 0; i < n; ++i) sum += i;
  return sum;
}

/* Each member reads in every round what its neighbour wrote before. Returns how often that was not there. */
long rounds(int threads, int count) {
  volatile long said[64] = {0};
  long wrong = 0;
#pragma omp parallel num_threads(threads) reduction(+ : wrong)
  {
    int i = omp_get_thread_num(), n = omp_get_num_threads();
    wrong += n != threads;
    for (int r = 1; r <= count; ++r) {
      said[i] = r;
#pragma omp barrier
      wrong += said[(i + 1) % n] != r;
#pragma omp barrier
    }
  }
  return wrong;
}

struct Loop { long begin, end, step, chunk; int *by; };
static void loop(void *data) {
  struct Loop *l = data;
  long first, last;
  for (bool more = GOMP_loop_static_start(l->begin, l->end, l->step, l->chunk, &first, &last); more;
       more = GOMP_loop_static_next(&first, &last))
    for (long i = first; l->step > 0 ? i < last : i > last; i += l->step)
      l->by[i] = l->by[i] ? -1 : omp_get_thread_num() + 1;
  GOMP_loop_end_nowait();
}
/* Says of each iteration which member did it, from 1; -1 for one that was done twice. */
void shared_out(int threads, long begin, long end, long step, long chunk, int *by) {
  struct Loop l = {begin, end, step, chunk, by};
  GOMP_parallel_start(loop, &l, threads);
  loop(&l);
  GOMP_parallel_end();
}

/* in_parallel, threads and number: outside, inside and in a region inside. */
void places(int *said) {
  said[0] = omp_in_parallel(), said[1] = omp_get_num_threads(), said[2] = omp_get_thread_num();
#pragma omp parallel num_threads(2)
  {
    int *mine = said + 3 + 6 * omp_get_thread_num();
    mine[0] = omp_in_parallel(), mine[1] = omp_get_num_threads(), mine[2] = omp_get_thread_num();
#pragma omp parallel num_threads(2)
    mine[3] = omp_in_parallel(), mine[4] = omp_get_num_threads(), mine[5] = omp_get_thread_num();
  }
  said[15] = omp_in_parallel(), said[16] = omp_get_num_threads(), said[17] = omp_get_max_threads();
}
"""


def make(source: str, folder: Path, name: str) -> Path:
    path = folder / f"{name}.so"
    command = ["gcc", "-O1", "-fopenmp", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return path


@pytest.fixture(scope="module")
def regions(tmp_path_factory) -> Path:
    return make(SOURCE, tmp_path_factory.mktemp("openmp"), "regions")


SCRIPT = """
import ctypes, os, sys, threading
from ferrule.native import library_path
ferrule, regions = ctypes.CDLL(library_path()), ctypes.CDLL(sys.argv[1])
assert ferrule.ferrule_use_pool_for_openmp(ctypes.c_void_p(regions._handle)) == 1
regions.total.restype = ctypes.c_long
regions.total.argtypes = [ctypes.c_long]
regions.rounds.restype = ctypes.c_long
regions.shared_out.argtypes = [ctypes.c_int] + 4 * [ctypes.c_long] + [ctypes.c_void_p]
"""


def execute(library: Path, body: str, threads: int) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT + textwrap.dedent(body), str(library)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "FERRULE_NUM_THREADS": str(threads)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_regions_and_barriers(regions, threads):
    execute(
        regions,
        """
        assert regions.total(100001) == 100001 * 100000 // 2
        for count in (1, 2, 3, 5, 9):  # more than the pool has, too
            assert regions.rounds(count, 200) == 0
        """,
        threads,
    )


def test_callers_take_turns(regions):
    """Teams of several callers need the same workers; each has all that it asked for, or waits."""
    execute(
        regions,
        """
        wrong = []
        def call():
            for _ in range(30):
                wrong.append(regions.rounds(3, 20))
                wrong.append(regions.total(1001) - 1001 * 500)
        callers = [threading.Thread(target=call) for _ in range(6)]
        [c.start() for c in callers]
        [c.join() for c in callers]
        assert wrong == [0] * 360, wrong
        """,
        3,
    )


def test_child_of_a_fork(regions):
    execute(
        regions,
        """
        assert regions.rounds(3, 20) == 0
        child = os.fork()
        if child == 0:
            import signal
            signal.alarm(20)
            os._exit(7 if regions.rounds(3, 20) == 0 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        """,
        3,
    )


def test_threads_are_the_pools(regions):
    said = execute(
        regions,
        """
        regions.rounds(3, 20)
        print(sorted(open(f"/proc/self/task/{t}/comm").read().strip() for t in os.listdir("/proc/self/task")))
        """,
        3,
    )
    assert [name for name in literal_eval(said) if name.startswith("ferrule-")] == ["ferrule-1", "ferrule-2"]
    assert len(literal_eval(said)) == 3


def test_loops_are_shared_out(regions):
    """As libgomp does: ranges that differ by one iteration at most, or chunks in turns."""
    execute(
        regions,
        """
        for threads in (1, 2, 3):
            for begin, end, step in ((0, 10, 1), (3, 50, 7), (40, -1, -3), (0, 2, 1), (5, 5, 1), (9, 0, 1)):
                for chunk in (0, 1, 4):
                    by = (ctypes.c_int * 64)()
                    regions.shared_out(threads, begin, end, step, chunk, by)
                    want, indices = [0] * 64, list(range(begin, end, step))
                    least, more = divmod(len(indices), threads)
                    shares = [i for i in range(threads) for _ in range(least + (i < more))]
                    for k, i in enumerate(indices):
                        want[i] = 1 + (k // chunk % threads if chunk else shares[k])
                    assert list(by) == want, (threads, begin, end, step, chunk)
        """,
        3,
    )


def test_threads_that_the_system_refuses(regions):
    """Without memory for a worker's stack the pool has fewer; a library is told so, and one thread does the work."""
    execute(
        regions,
        """
        import resource
        pages = int(open("/proc/self/statm").read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (4 << 20), resource.RLIM_INFINITY))
        assert ferrule.ferrule_team_threads() == 1
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert regions.rounds(3, 20) == 0  # who asks for more has threads made for it
        """,
        3,
    )


def test_what_a_region_says_of_itself(regions):
    said = execute(
        regions,
        """
        said = (ctypes.c_int * 18)()
        regions.places(said)
        print(list(said))
        """,
        3,
    )
    assert literal_eval(said) == [0, 1, 0, 1, 2, 0, 1, 1, 0, 1, 2, 1, 1, 1, 0, 0, 1, 3]


def test_library_that_needs_more_is_left_alone(native, tmp_path):
    """A region whose loop is not shared out evenly calls functions of libgomp that are not here."""
    path = make(
        """
        long total(long n) {
          long sum = 0;
        #pragma omp parallel for reduction(+ : sum) schedule(monotonic : dynamic, 8)
          for (long i = 0; i < n; ++i) sum += i;
          return sum;
        }""",
        tmp_path,
        "dynamic",
    )
    library = ctypes.CDLL(str(path))
    assert native.lib.ferrule_use_pool_for_openmp(ctypes.c_void_p(library._handle)) == 0
    library.total.restype, library.total.argtypes = ctypes.c_long, [ctypes.c_long]
    assert library.total(1001) == 1001 * 500


def test_library_without_openmp_is_left_alone(native):
    library = ctypes.CDLL("libm.so.6")
    assert native.lib.ferrule_use_pool_for_openmp(ctypes.c_void_p(library._handle)) == 0
