// Where the devices of one run of a program meet: the synchronization below collectives.
//
// A meeting cannot hang. It ends when every member of the group has come, when a device's program has failed, or when
// nobody is left who could still come: every device of the run waits at some meeting, or has ended. In the last two
// cases all who wait get ABORTED and the reason.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "status.h"

namespace ferrule {

class Rendezvous {
 public:
  // What a member brings to a meeting: the addresses of its operands and results.
  struct Member {
    void* const* operands = nullptr;
    void* const* results = nullptr;
  };

  // `names[i]` is the device with the number i = replica * partitions + partition.
  Rendezvous(int replicas, int partitions, std::vector<std::string> names);

  int replicas() const { return replicas_; }
  int partitions() const { return partitions_; }

  // Waits until all `size` members of a group have come here. `call` and `group` identify the meeting (the same call
  // may be met at again and again), `place` is the caller's position in the group, `device` its number, `what` the
  // call's name for messages. On success `*all` are the members in order: they stay where they are until the caller,
  // and every other member, has come to Part.
  Status Meet(const void* call, size_t group, size_t size, size_t place, int device, const char* what, Member mine,
              const Member** all);
  // Waits until all members are done with each other's memory.
  Status Part(const void* call, size_t group, int device);

  // The program of `device` has ended; after an error those who wait for it give up.
  void Leave(int device, const Status& status);

 private:
  struct Meeting {
    const char* what = "";
    std::vector<Member> members;
    std::vector<int> devices;
    size_t arrived = 0;
    uint64_t round = 0;
    std::condition_variable wake;
  };
  using Lock = std::unique_lock<std::mutex>;

  Status Await(Lock& lock, Meeting& meeting, int device);
  // Called with the lock held when nobody runs any more.
  void GiveUp();
  void Stop(Status why);

  const int replicas_, partitions_;
  const std::vector<std::string> names_;
  std::mutex mutex_;
  std::map<std::pair<const void*, size_t>, Meeting> meetings_;
  std::vector<const Meeting*> waits_for_;  // per device; null while it runs
  std::vector<bool> ended_;
  int running_;
  Status stopped_;
};

}  // namespace ferrule
