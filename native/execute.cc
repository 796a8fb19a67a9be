// PJRT_LoadedExecutable_Execute: checks everything first, then launches on every device.
#include <system_error>
#include <thread>

#include "entry.h"
#include "launch.h"

namespace ferrule {
namespace {

Status CheckOptions(const PJRT_ExecuteOptions& options) {
  if (options.num_send_ops != 0 || options.num_recv_ops != 0) {
    return Unimplemented("send and recv callbacks are not supported; use jax.pure_callback or io_callback instead");
  }
  if (options.num_hlo_output_callbacks != 0) {
    return Unimplemented("HLO output callbacks are not supported; return the values as outputs instead");
  }
  if (options.num_non_donatable_input_indices != 0 && options.non_donatable_input_indices == nullptr) {
    return InvalidArgument("PJRT_ExecuteOptions: `non_donatable_input_indices` is null");
  }
  return {};
}

// A program with callbacks runs while its caller waits, as on one device: a callback may run programs itself, and must
// not occupy the devices' queues. All on threads of their own, as the caller's has settings of JAX's that are for the
// program's caller only, such as a mesh. Fails as a whole, with the error of the device that failed first by itself.
Status RunInThreads(std::vector<Launch>& launches, Rendezvous& rendezvous, PJRT_Buffer** const* outputs, size_t count,
                    std::vector<Ref<Event>>& events) {
  std::vector<Status> statuses(launches.size());
  const auto run = [&](size_t d) { statuses[d] = launches[d].RunInline(outputs[d], &events[d]); };
  std::vector<std::thread> threads;
  for (size_t d = 0; d < launches.size(); ++d) {
    try {
      threads.emplace_back(run, d);
    } catch (const std::system_error& error) {
      statuses[d] = Internal("no thread could be started for a device: " + std::string(error.what()));
      rendezvous.Leave(static_cast<int>(d), statuses[d]);
    }
  }
  for (std::thread& thread : threads) thread.join();
  const Status* failed = nullptr;
  for (const Status& status : statuses) {
    if (!status.ok() && (failed == nullptr || failed->code() == Code::kAborted)) failed = &status;
  }
  if (failed == nullptr) return {};
  for (size_t d = 0; d < launches.size(); ++d) {
    for (size_t k = 0; statuses[d].ok() && k < count; ++k) delete From(outputs[d][k]);
  }
  return *failed;
}

}  // namespace

Status LoadedExecutable::Execute(const PJRT_LoadedExecutable_Execute_Args& args, const PJRT_ExecuteOptions& options) {
  const Program& program = *executable->program;
  if (deleted) return FailedPrecondition("the executable `" + program.name + "` has been deleted; compile it again");
  FERRULE_RETURN_IF_ERROR(CheckOptions(options));
  if (args.num_args != program.params.size()) {
    return InvalidArgument("the program `" + program.name + "` takes " + std::to_string(program.params.size()) +
                           " arguments, got " + std::to_string(args.num_args));
  }
  const size_t expected = args.execute_device != nullptr ? 1 : devices.size();
  if (args.num_devices != expected) {
    return InvalidArgument("the program `" + program.name + "` runs on " + std::to_string(expected) +
                           " devices, argument lists for " + std::to_string(args.num_devices) + " were given");
  }
  if (args.output_lists == nullptr || (args.argument_lists == nullptr && args.num_args > 0)) {
    return InvalidArgument("PJRT_LoadedExecutable_Execute: the argument or output lists are null");
  }
  auto* context = From(options.context);
  const auto device = [&](size_t d) { return args.execute_device != nullptr ? From(args.execute_device) : devices[d]; };
  const auto start = [&](size_t d, Launch& launch) {
    launch = Launch(this, device(d), logical_ids[d], context);
    return launch.Prepare(args.num_args > 0 ? args.argument_lists[d] : nullptr, options);
  };
  const auto finish = [&](size_t d, Ref<Event> done) {
    if (args.device_complete_events != nullptr) args.device_complete_events[d] = To(done.release());
  };
  Ref<Event> done;
  if (expected == 1) {
    Launch launch;
    FERRULE_RETURN_IF_ERROR(start(0, launch));
    const int64_t run = launch.Watch();
    const bool now = launch.CanRunInline();
    if (now) FERRULE_RETURN_IF_ERROR(launch.RunInline(args.output_lists[0], &done));
    if (!done) Launch::Enqueue(std::move(launch), args.output_lists[0], &done);
    if (run != 0) device(0)->last_run.Left(run, program.habit);
    finish(0, std::move(done));
    return {};
  }
  // Nothing starts before every device's arguments are known to be good. The devices run side by side and meet in
  // collectives.
  std::vector<Launch> launches(expected);
  std::vector<std::string> names(expected);
  for (size_t d = 0; d < expected; ++d) {
    FERRULE_RETURN_IF_ERROR(start(d, launches[d]));
    names[d] = "device " + std::to_string(devices[d]->description->id);
  }
  auto rendezvous = std::make_shared<Rendezvous>(static_cast<int>(program.replicas),
                                                 static_cast<int>(program.partitions), std::move(names));
  for (size_t d = 0; d < expected; ++d) launches[d].Join(rendezvous, static_cast<int>(d));
  std::vector<Ref<Event>> events(expected);
  if (program.flags & Program::kPython) {
    FERRULE_RETURN_IF_ERROR(RunInThreads(launches, *rendezvous, args.output_lists, program.outputs.size(), events));
  } else {
    Launch::EnqueueAll(std::move(launches), args.output_lists, events.data());
  }
  for (size_t d = 0; d < expected; ++d) finish(d, std::move(events[d]));
  return {};
}

namespace api {

Status PJRT_LoadedExecutable_Execute(PJRT_LoadedExecutable_Execute_Args& args) {
  const PJRT_ExecuteOptions* options = args.options;
  if (options != nullptr && options->struct_size >= PJRT_ExecuteOptions_STRUCT_SIZE) [[likely]] {
    return From(args.executable)->Execute(args, *options);
  }
  const Widened<PJRT_ExecuteOptions> widened(options);
  return From(args.executable)->Execute(args, *widened);
}

}  // namespace api
}  // namespace ferrule
