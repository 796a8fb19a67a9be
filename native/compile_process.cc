#include "compile_process.h"

#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <vector>

#include "calls.h"
#include "python_api.h"

extern char** environ;

namespace ferrule {
namespace {

// A socket, not a pipe: writing to a process that has died must not raise SIGPIPE.
class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() { close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  bool Write(const char* data, size_t size) const {
    while (size > 0) {
      ssize_t n = send(fd_, data, size, MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      data += n, size -= static_cast<size_t>(n);
    }
    return true;
  }

  bool WriteBlock(std::string_view block) const {
    uint64_t size = block.size();
    return Write(reinterpret_cast<const char*>(&size), sizeof size) && Write(block.data(), block.size());
  }

  std::string ReadAll() const {
    std::string all;
    char part[65536];
    for (;;) {
      ssize_t n = recv(fd_, part, sizeof part, 0);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return all;
      all.append(part, static_cast<size_t>(n));
    }
  }

  void EndWriting() const { shutdown(fd_, SHUT_WR); }

 private:
  int fd_;
};

Status CannotStart(const std::string& why) {
  return Status(Code::kUnavailable,
                "the program cannot be compiled: Python's lock is held by a thread that waits for this compile, and no "
                "process to compile in can be started\n  why: " +
                    why + "\n  fix: compile for the devices of the client instead of for a topology");
}

// The parent's environment with the parent's module path.
std::vector<std::string> ChildEnvironment() {
  std::vector<std::string> all;
  for (char** entry = environ; *entry; ++entry)
    if (std::strncmp(*entry, "PYTHONPATH=", 11) != 0) all.emplace_back(*entry);
  all.push_back("PYTHONPATH=" + GetPath("python.path"));
  return all;
}

}  // namespace

Result<std::string> CompileInProcess(std::string_view code, std::string_view format, std::string_view options,
                                     std::string_view target) {
  std::string python = GetPath("python.executable");
  if (python.empty()) return CannotStart("this process's Python has no executable");
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return CannotStart(std::strerror(errno));
  Socket mine(ends[0]);
  pid_t child = 0;
  {
    Socket theirs(ends[1]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    std::string module = "ferrule.compile_process", flag = "-m";
    char* arguments[] = {python.data(), flag.data(), module.data(), nullptr};
    std::vector<std::string> environment = ChildEnvironment();
    std::vector<char*> pointers;
    for (std::string& entry : environment) pointers.push_back(entry.data());
    pointers.push_back(nullptr);
    int error = posix_spawn(&child, python.c_str(), &actions, nullptr, arguments, pointers.data());
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) return CannotStart(python + ": " + std::strerror(error));
  }
  bool sent = true;
  for (std::string_view block : {code, format, options, target}) sent = sent && mine.WriteBlock(block);
  mine.EndWriting();
  std::string answer = mine.ReadAll();
  int state = 0;
  while (waitpid(child, &state, 0) < 0 && errno == EINTR) {
  }
  uint64_t size = 0;
  if (answer.size() >= sizeof size) std::memcpy(&size, answer.data(), sizeof size);
  if (size == 0 || size > answer.size() - sizeof size)
    return Internal("the process that compiles ended without an answer (state " + std::to_string(state) +
                    "); its own words are on stderr");
  std::string name = answer.substr(sizeof size, size), payload = answer.substr(sizeof size + size);
  if (name == "OK") return payload;
  Code reason = python::CodeOf(name);
  return Status(reason == Code::kOk ? Code::kInternal : reason, payload);
}

}  // namespace ferrule
