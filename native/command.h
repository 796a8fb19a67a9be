// A reference to a driver's event: the end of one command. Empty for what has ended already.
#pragma once

#include <utility>
#include <vector>

#include "driver.h"

namespace ferrule {

class Command {
 public:
  Command() = default;
  Command(const FerruleDriver* driver, FerruleEvent* event) : driver_(driver), event_(event) {}  // takes the reference
  Command(const Command& other) : driver_(other.driver_), event_(other.event_) {
    if (event_ != nullptr) driver_->retain(event_);
  }
  Command(Command&& other) noexcept : driver_(other.driver_), event_(std::exchange(other.event_, nullptr)) {}
  Command& operator=(Command other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(event_, other.event_);
    return *this;
  }
  ~Command() {
    if (event_ != nullptr) driver_->release(event_);
  }

  explicit operator bool() const { return event_ != nullptr; }
  FerruleEvent* event() const { return event_; }
  bool operator==(const Command& other) const { return event_ == other.event_; }

 private:
  const FerruleDriver* driver_ = nullptr;
  FerruleEvent* event_ = nullptr;
};

using Commands = std::vector<Command>;

}  // namespace ferrule
