#include "rendezvous.h"

namespace ferrule {

Rendezvous::Rendezvous(int replicas, int partitions, std::vector<std::string> names)
    : replicas_(replicas),
      partitions_(partitions),
      names_(std::move(names)),
      waits_for_(names_.size()),
      ended_(names_.size()),
      running_(static_cast<int>(names_.size())) {}

Status Rendezvous::Meet(const void* call, size_t group, size_t size, size_t place, int device, const char* what,
                        Member mine, const Member** all) {
  Lock lock(mutex_);
  Meeting& meeting = meetings_[{call, group}];
  if (meeting.members.empty()) {
    meeting.what = what;
    meeting.members.resize(size);
    meeting.devices.assign(size, -1);
  }
  meeting.members[place] = mine;
  meeting.devices[place] = device;
  *all = meeting.members.data();
  return Await(lock, meeting, device);
}

Status Rendezvous::Part(const void* call, size_t group, int device) {
  Lock lock(mutex_);
  return Await(lock, meetings_[{call, group}], device);
}

Status Rendezvous::Await(Lock& lock, Meeting& meeting, int device) {
  if (!stopped_.ok()) return stopped_;
  if (++meeting.arrived == meeting.members.size()) {
    meeting.arrived = 0;
    ++meeting.round;
    // Those who are released run from now on, whenever they wake.
    for (int other : meeting.devices) {
      if (waits_for_[other] == nullptr) continue;
      waits_for_[other] = nullptr;
      ++running_;
    }
    meeting.wake.notify_all();
    return {};
  }
  const uint64_t round = meeting.round;
  waits_for_[device] = &meeting;
  if (--running_ == 0) GiveUp();
  meeting.wake.wait(lock, [&] { return meeting.round != round || !stopped_.ok(); });
  return meeting.round != round ? Status() : stopped_;
}

void Rendezvous::Leave(int device, const Status& status) {
  Lock lock(mutex_);
  if (ended_[device]) return;
  ended_[device] = true;
  if (waits_for_[device] == nullptr) --running_;
  if (!status.ok()) {
    Stop({Code::kAborted, "the program was stopped because it failed on " + names_[device] + ", which the other " +
                              "devices of this run wait for\n  why: " + status.message()});
  } else if (running_ == 0) {
    GiveUp();
  }
}

void Rendezvous::GiveUp() {
  std::string text;
  for (size_t i = 0; i < names_.size(); ++i) {
    if (waits_for_[i] != nullptr) text += (text.empty() ? "" : ", ") + names_[i] + " in " + waits_for_[i]->what;
  }
  if (text.empty()) return;
  std::string gone;
  for (size_t i = 0; i < names_.size(); ++i) {
    if (ended_[i]) gone += (gone.empty() ? "" : ", ") + names_[i];
  }
  Stop({Code::kAborted, "the devices of this run wait for each other for ever\n  why: " + text +
                            (gone.empty() ? std::string() : "; ended: " + gone) +
                            "\n  fix: every device of a group must run the same collectives in the same order; look "
                            "for branches and loops whose conditions differ from device to device"});
}

void Rendezvous::Stop(Status why) {
  if (!stopped_.ok()) return;
  stopped_ = std::move(why);
  for (auto& [key, meeting] : meetings_) meeting.wake.notify_all();
}

}  // namespace ferrule
