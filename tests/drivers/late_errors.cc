// Errors that SYCL reports after a command was started: on which events do they end up? Prints one line for each event.
#include <cstdio>

#include "device.h"

namespace fs = ferrule_sycl;

namespace {

FerruleEvent* Submit(FerruleDevice* device, FerruleEvent* before, bool fails) {
  FerruleEvent* event = nullptr;
  fs::Give(device, device->queue.submit([&](sycl::handler& handler) {
    if (before) handler.depends_on(before->event);
    handler.host_task([fails] {
      if (fails) throw sycl::exception(sycl::make_error_code(sycl::errc::runtime), "UR_RESULT_ERROR_DEVICE_LOST");
    });
  }),
           &event);
  return event;
}

void Show(const char* name, FerruleEvent* event) {
  int code = fs::Wait(event);
  std::printf("%s %d %s\n", name, code, code ? fs::LastError() : "");
}

}  // namespace

int main() {
  const fs::Devices& all = fs::FindDevices(false);
  FerruleDevice *device = nullptr, *other = nullptr;
  if (all.list.empty() || fs::Open(*all.list.back(), &device) || fs::Open(*all.list.back(), &other)) return 1;
  FerruleEvent* before = Submit(device, nullptr, false);
  Show("before", before);
  FerruleEvent* elsewhere = Submit(other, nullptr, false);
  FerruleEvent* failing = Submit(device, before, true);
  FerruleEvent* following = Submit(device, failing, false);
  Show("following", following);
  Show("failing", failing);
  Show("again", failing);
  Show("before", before);
  Show("elsewhere", elsewhere);
  FerruleEvent* later = Submit(device, nullptr, false);
  Show("later", later);
  for (FerruleEvent* event : {before, elsewhere, failing, following, later}) fs::Release(event);
  fs::Close(device);
  fs::Close(other);
  return 0;
}
