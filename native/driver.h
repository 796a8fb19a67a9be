// What a device driver gives to the runtime: a table of C functions in a shared library of its own, opened when a
// device of its kind is first wanted (libferrule_sycl.so for Intel GPUs). The runtime holds the policy (which memory,
// which order, which errors); a driver only does what it is told.
//
// Every function that can fail returns 0 or a PJRT_Error_Code, and then `last_error` gives the message to the thread
// that called. No exception crosses this border. All functions may be called from several threads at once, except that
// commands for one device come from one thread at a time.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Raised with any change; a driver serves exactly one.
#define FERRULE_DRIVER_ABI 1

typedef struct FerruleDevice FerruleDevice;  // an open device: a context and an out-of-order queue
typedef struct FerruleModule FerruleModule;  // loaded code
typedef struct FerruleKernel FerruleKernel;  // lives as long as its module
typedef struct FerruleEvent FerruleEvent;    // the end of one command
typedef struct FerruleCall FerruleCall;      // a library call, prepared

typedef enum FerruleMemory {
  FERRULE_MEMORY_DEVICE = 0,
  FERRULE_MEMORY_HOST = 1,    // host memory that the device copies from and to fast
  FERRULE_MEMORY_SHARED = 2,  // moves between both
} FerruleMemory;

enum { FERRULE_FORMAT_F16 = 1, FERRULE_FORMAT_F64 = 2, FERRULE_FORMAT_ATOMIC64 = 4 };  // bits of `formats`

typedef struct FerruleDeviceInfo {
  const char* name;            // as the vendor gives it
  const char* kind;            // "gpu", or "cpu" for a CPU that stands in for one
  const char* backend;         // "level_zero", "opencl", "cuda"
  const char* driver_version;  // of the backend's driver: part of the keys of cached binaries
  const char* arch;            // "pvc", "dg2", …; "" when unknown
  int64_t memory_bytes, max_allocation_bytes, local_memory_bytes;
  int32_t compute_units, max_group_size, clock_mhz;
  int32_t sub_group_sizes[8];  // zeros at the end
  uint32_t formats;
  int32_t host_access;  // the host may read and write device memory by its address
} FerruleDeviceInfo;

typedef struct FerruleShape {
  int32_t dtype;  // PJRT_Buffer_Type
  int32_t rank;
  const int64_t* dims;
} FerruleShape;

typedef struct FerruleAttribute {
  const char* name;
  enum { FERRULE_INTS, FERRULE_FLOAT, FERRULE_STRING } kind;
  const int64_t* ints;  // booleans are integers
  size_t num_ints;
  double number;
  const char* text;
} FerruleAttribute;

// A library call; dense row-major operands and results unless attributes say otherwise.
typedef struct FerruleCallDesc {
  const char* target;  // "dnnl.matmul", …
  const FerruleShape* operands;
  size_t num_operands;
  const FerruleShape* results;
  size_t num_results;
  const FerruleAttribute* attributes;
  size_t num_attributes;
} FerruleCallDesc;

// The events that a command waits for.
typedef struct FerruleAfter {
  FerruleEvent* const* events;
  size_t count;
} FerruleAfter;

typedef struct FerruleDriver {
  size_t struct_size;
  uint32_t abi;

  // The message of the calling thread's last failure.
  const char* (*last_error)(void);
  // The devices, best first. `options`: "key=value" pairs with commas, "tiles=1" makes each tile a device; null for
  // none. The infos live as long as the process. No device is not an error: `*count` is 0 and last_error says what was
  // looked for and what was found.
  int (*devices)(const char* options, const FerruleDeviceInfo* const** infos, size_t* count);

  // Opens device `index` of `devices`. The same one may be opened several times: logical devices with queues of their
  // own. `close` waits for all commands.
  int (*open)(size_t index, FerruleDevice** device);
  void (*close)(FerruleDevice* device);

  // Memory aligned to 64 bytes. No command may still use what is freed. RESOURCE_EXHAUSTED when there is none left.
  int (*allocate)(FerruleDevice* device, FerruleMemory kind, int64_t bytes, void** data);
  void (*free)(FerruleDevice* device, void* data);

  // Commands start when the commands of `after` have ended; these may be of other devices of this driver. `*done`, when
  // it is not null, gets an event that the caller releases. A command that fails later fails its event.
  int (*copy)(FerruleDevice* device, void* dst, const void* src, int64_t bytes, FerruleAfter after,
              FerruleEvent** done);  // between any two of device, host and foreign host memory
  int (*launch)(FerruleDevice* device, FerruleKernel* kernel, int64_t groups, int64_t group_size, void* const* pointers,
                size_t num_pointers, FerruleAfter after, FerruleEvent** done);
  int (*call)(FerruleDevice* device, FerruleCall* call, void* const* operands, void* const* results, void* scratch,
              FerruleAfter after, FerruleEvent** done);
  int (*join)(FerruleDevice* device, FerruleAfter after, FerruleEvent** done);  // does nothing, after all of them

  // Blocks until the command has ended; gives its error.
  int (*wait)(FerruleEvent* event);
  void (*retain)(FerruleEvent* event);
  void (*release)(FerruleEvent* event);
  // When the command ran, in nanoseconds of the device's clock; UNIMPLEMENTED unless FERRULE_DEBUG is 2 or more.
  int (*times)(FerruleEvent* event, int64_t* begin, int64_t* end);

  // Code in the driver's form (SPIR-V). Compiled binaries are kept in a cache on disk.
  int (*load)(FerruleDevice* device, const char* code, size_t size, FerruleModule** module);
  void (*unload)(FerruleModule* module);
  int (*kernel)(FerruleModule* module, const char* name, FerruleKernel** kernel);

  // Prepares a library call; `*scratch_bytes` is the device memory that it needs while it runs. NOT_FOUND when the
  // driver has no such call or its library is not installed, UNIMPLEMENTED when the library cannot do this one.
  int (*prepare)(FerruleDevice* device, const FerruleCallDesc* desc, FerruleCall** call, int64_t* scratch_bytes);
  void (*discard)(FerruleCall* call);
} FerruleDriver;

// What a driver library exports: its table, or null when it does not serve this ABI. `paths`: where Python found the
// libraries that the driver opens, "name=path" lines.
typedef const FerruleDriver* (*FerruleGetDriver)(uint32_t abi, const char* paths);  // "ferrule_get_driver"

#ifdef __cplusplus
}
#endif
