"""The PJRT C ABI as one table: versions, enums, functions, structs, callbacks.

The C header of `native/` (`header.py`) and the ctypes structs of Python clients (`ctypes_abi.py`) are made from it, and
`tests/test_abi.py` compares it with independently observed facts. To follow a newer PJRT: append the new functions
and fields with the minor version that brought them (`@115 `), raise MINOR.
"""

from __future__ import annotations

from .abi_core import STRUCTS
from .abi_ffi import (
    EXTENSION_STRUCTS,
    FFI_FUNCTION_TYPES,
    FFI_OLD_STRUCTS,
    FFI_STRUCTS,
    FFI_VERSION,
    FFI_VOID_FUNCTIONS,
)
from .layout import Enum, Function, Struct, api_struct, lay_out, parse_enums, parse_functions, parse_structs

MAJOR, MINOR = 0, 114
# Fields and functions without `@minor` are as old as this; no older caller is served.
OLDEST_MINOR = 29

# Enum name, the prefix of its members' C names ("-": none), then its members; `@55:` = since minor version 55 (of the
# FFI's versions where the enum is the FFI's).
ENUMS = parse_enums("""
PJRT_Extension_Type PJRT_Extension_Type_
    Gpu_Custom_Call=0 @34:Profiler=1 @47:Custom_Partitioner=2 @49:Stream=3 @51:Layouts=4 @53:FFI=5
    @59:MemoryDescriptions=6 @65:Triton=7 RawBuffer=8 PhaseCompile=9 Example=10 Unknown=11 @74:CrossHostTransfers=12
    ExecutableMetadata=13 Callback=14 @80:HostAllocator=15 TpuTopology=16 TpuExecutable=17 Megascale=18
    @91:Shardings=19 AbiVersion=20 Collectives=21 MultiSlice=22 HostMemoryAllocator=23 XlaTransform=24
PJRT_Error_Code PJRT_Error_Code_
    OK=0 CANCELLED=1 UNKNOWN=2 INVALID_ARGUMENT=3 DEADLINE_EXCEEDED=4 NOT_FOUND=5 ALREADY_EXISTS=6
    PERMISSION_DENIED=7 RESOURCE_EXHAUSTED=8 FAILED_PRECONDITION=9 ABORTED=10 OUT_OF_RANGE=11 UNIMPLEMENTED=12
    INTERNAL=13 UNAVAILABLE=14 DATA_LOSS=15 UNAUTHENTICATED=16
PJRT_NamedValue_Type PJRT_NamedValue_
    kString=0 kInt64=1 kInt64List=2 kFloat=3 @30:kBool=4
PJRT_ProcessState PJRT_ProcessState_
    kUnspecified=0 kUninitialized=1 kDisconnected=2 kConnected=3 kError=4
PJRT_Buffer_Type PJRT_Buffer_Type_
    INVALID=0 PRED=1 S8=2 S16=3 S32=4 S64=5 U8=6 U16=7 U32=8 U64=9 F16=10 F32=11 F64=12 BF16=13 C64=14 C128=15
    F8E5M2=16 F8E4M3FN=17 F8E4M3B11FNUZ=18 F8E5M2FNUZ=19 F8E4M3FNUZ=20 S4=21 U4=22 @50:TOKEN=23 S2=24 U2=25
    @55:F8E4M3=26 @55:F8E3M4=27 @63:F8E8M0FNU=28 @63:F4E2M1FN=29 @94:S1=30 @94:U1=31 @114:F6E2M3FN=32
    @114:F6E3M2FN=33
PJRT_HostBufferSemantics PJRT_HostBufferSemantics_
    kImmutableOnlyDuringCall=0 kImmutableUntilTransferCompletes=1 kImmutableZeroCopy=2 @48:kMutableZeroCopy=3
PJRT_Buffer_MemoryLayout_Type PJRT_Buffer_MemoryLayout_Type_
    Tiled=0 Strides=1
PJRT_FFI_Handler_TraitsBits -
    PJRT_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE=1
XLA_FFI_Extension_Type XLA_FFI_Extension_
    Metadata=1
XLA_FFI_Error_Code XLA_FFI_Error_Code_
    OK=0 CANCELLED=1 UNKNOWN=2 INVALID_ARGUMENT=3 DEADLINE_EXCEEDED=4 NOT_FOUND=5 ALREADY_EXISTS=6
    PERMISSION_DENIED=7 RESOURCE_EXHAUSTED=8 FAILED_PRECONDITION=9 ABORTED=10 OUT_OF_RANGE=11 UNIMPLEMENTED=12
    INTERNAL=13 UNAVAILABLE=14 DATA_LOSS=15 UNAUTHENTICATED=16
XLA_FFI_DataType XLA_FFI_DataType_
    INVALID=0 PRED=1 S1=30 S2=26 S4=21 S8=2 S16=3 S32=4 S64=5 U1=31 U2=27 U4=22 U8=6 U16=7 U32=8 U64=9 F16=10 F32=11
    F64=12 BF16=16 C64=15 C128=18 TOKEN=17 F8E5M2=19 F8E3M4=29 F8E4M3=28 F8E4M3FN=20 F8E4M3B11FNUZ=23 F8E5M2FNUZ=24
    F8E4M3FNUZ=25 F4E2M1FN=32 F8E8M0FNU=33
XLA_FFI_ArgType XLA_FFI_ArgType_
    BUFFER=1
XLA_FFI_RetType XLA_FFI_RetType_
    BUFFER=1
XLA_FFI_AttrType XLA_FFI_AttrType_
    ARRAY=1 DICTIONARY=2 SCALAR=3 STRING=4
XLA_FFI_ExecutionStage XLA_FFI_ExecutionStage_
    INSTANTIATE=0 PREPARE=1 INITIALIZE=2 EXECUTE=3 @4:RECORD=4
XLA_FFI_Handler_TraitsBits -
    XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE=1
""")

# The functions of PJRT_Api in table order, without their prefix "PJRT_". Each takes one PJRT_<name>_Args *.
FUNCTIONS = parse_functions("""
Error_Destroy Error_Message Error_GetCode Plugin_Initialize Plugin_Attributes Event_Destroy Event_IsReady Event_Error
Event_Await Event_OnReady Client_Create Client_Destroy Client_PlatformName Client_ProcessIndex Client_PlatformVersion
Client_Devices Client_AddressableDevices Client_LookupDevice Client_LookupAddressableDevice Client_AddressableMemories
Client_Compile Client_DefaultDeviceAssignment Client_BufferFromHostBuffer DeviceDescription_Id
DeviceDescription_ProcessIndex DeviceDescription_Attributes DeviceDescription_Kind DeviceDescription_DebugString
DeviceDescription_ToString Device_GetDescription Device_IsAddressable Device_LocalHardwareId
Device_AddressableMemories Device_DefaultMemory Device_MemoryStats Memory_Id Memory_Kind Memory_DebugString
Memory_ToString Memory_AddressableByDevices Executable_Destroy Executable_Name Executable_NumReplicas
Executable_NumPartitions Executable_NumOutputs Executable_SizeOfGeneratedCodeInBytes Executable_GetCostAnalysis
Executable_OutputMemoryKinds Executable_OptimizedProgram Executable_Serialize LoadedExecutable_Destroy
LoadedExecutable_GetExecutable LoadedExecutable_AddressableDevices LoadedExecutable_Delete LoadedExecutable_IsDeleted
LoadedExecutable_Execute Executable_DeserializeAndLoad LoadedExecutable_Fingerprint Buffer_Destroy Buffer_ElementType
Buffer_Dimensions Buffer_UnpaddedDimensions Buffer_DynamicDimensionIndices Buffer_GetMemoryLayout
Buffer_OnDeviceSizeInBytes Buffer_Device Buffer_Memory Buffer_Delete Buffer_IsDeleted Buffer_CopyToDevice
Buffer_ToHostBuffer Buffer_IsOnCpu Buffer_ReadyEvent Buffer_UnsafePointer Buffer_IncreaseExternalReferenceCount
Buffer_DecreaseExternalReferenceCount Buffer_OpaqueDeviceMemoryDataPointer CopyToDeviceStream_Destroy
CopyToDeviceStream_AddChunk CopyToDeviceStream_TotalBytes CopyToDeviceStream_GranuleSize
CopyToDeviceStream_CurrentBytes TopologyDescription_Create TopologyDescription_Destroy
TopologyDescription_PlatformName TopologyDescription_PlatformVersion TopologyDescription_GetDeviceDescriptions
TopologyDescription_Serialize TopologyDescription_Attributes Compile @29:Executable_OutputElementTypes
@29:Executable_OutputDimensions @32:Buffer_CopyToMemory @33:Client_CreateViewOfDeviceBuffer @35:Executable_Fingerprint
@36:Client_TopologyDescription @40:Executable_GetCompiledMemoryStats @48:Memory_Kind_Id @52:ExecuteContext_Create
@52:ExecuteContext_Destroy @56:Buffer_CopyRawToHost @60:AsyncHostToDeviceTransferManager_Destroy
@60:AsyncHostToDeviceTransferManager_TransferData @60:Client_CreateBuffersForAsyncHostToDevice
@62:AsyncHostToDeviceTransferManager_RetrieveBuffer @62:AsyncHostToDeviceTransferManager_Device
@62:AsyncHostToDeviceTransferManager_BufferCount @62:AsyncHostToDeviceTransferManager_BufferSize
@62:AsyncHostToDeviceTransferManager_SetBufferError @62:AsyncHostToDeviceTransferManager_AddMetadata @67:Client_DmaMap
@67:Client_DmaUnmap @69:Client_CreateUninitializedBuffer @73:Client_UpdateGlobalProcessInfo
@75:TopologyDescription_Deserialize @77:Client_CreateAliasBuffer @77:Client_FulfillAliasBuffer
@79:LoadedExecutable_GetDeviceAssignment @82:Client_CreateErrorBuffer
@83:AsyncHostToDeviceTransferManager_TransferLiteral @84:Buffer_CopyRawToHostFuture @85:Device_PoisonExecution
@86:Device_CreateAsyncTrackingEvent @86:AsyncTrackingEvent_Destroy @87:Executable_GetCompileOptions
@88:Buffer_DonateWithControlDependency @89:Event_Create @89:Event_Set @92:Device_GetAttributes @95:Client_Load
@96:LoadedExecutable_AddressableDeviceLogicalIds @98:Buffer_Bitcast @99:Error_ForEachPayload
@101:TopologyDescription_Fingerprint @102:Executable_ParameterMemoryKinds @106:Device_ClearMemoryStats
@109:TopologyDescription_MakeCanonicalShapeForMemorySpace @110:TopologyDescription_GetMemorySpaceKindIds
""")

# Functions that return nothing; all others return PJRT_Error * (null = success).
VOID_FUNCTIONS = ("PJRT_Error_Destroy", "PJRT_Error_Message")

# Callback types (pointers to functions).
CALLBACKS = {
    "PJRT_Error_PayloadVisitor": "void (const char * key, size_t key_size, const char * value, size_t value_size, "
    "void * user_arg)",
    "PJRT_CallbackError": "PJRT_Error * (PJRT_Error_Code code, const char * message, size_t message_size)",
    "PJRT_Event_OnReadyCallback": "void (PJRT_Error * error, void * user_arg)",
    "PJRT_KeyValueGetCallback_ValueDeleter": "void (char * value)",
    "PJRT_KeyValueGetCallback": "PJRT_Error * (PJRT_KeyValueGetCallback_Args * args)",
    "PJRT_KeyValueTryGetCallback_ValueDeleter": "void (char * value)",
    "PJRT_KeyValueTryGetCallback": "PJRT_Error * (PJRT_KeyValueTryGetCallback_Args * args)",
    "PJRT_KeyValuePutCallback": "PJRT_Error * (PJRT_KeyValuePutCallback_Args * args)",
    "PJRT_SendCallback": "PJRT_Error * (PJRT_Chunk * chunk, PJRT_CallbackError * callback_error, "
    "size_t total_size_in_bytes, bool done, void * user_arg)",
    "PJRT_RecvCallback": "void (PJRT_CopyToDeviceStream * stream, void * user_arg)",
    "PJRT_HloOutputCallback": "void (int64_t replica_id, int64_t partition_id, const void * data, "
    "const int64_t * shape_dims, size_t shape_num_dims, PJRT_Buffer_Type shape_element_type, "
    "int64_t operand_index, void * user_arg)",
}

# Type names that stand for a plain C type.
SCALARS = {"XLA_FFI_Handler_Traits": "uint32_t"}

STRUCTS_BY_NAME: dict[str, Struct] = lay_out(
    parse_structs(STRUCTS)
    + api_struct(FUNCTIONS)
    + parse_structs(EXTENSION_STRUCTS)
    + parse_structs(FFI_STRUCTS + FFI_OLD_STRUCTS),
    enums=ENUMS,
    scalars=SCALARS,
    pointers=CALLBACKS,
)

# Struct and version of each extension that Ferrule knows, by the name of its type.
EXTENSIONS = {
    "Layouts": ("PJRT_Layouts_Extension", 4),
    "FFI": ("PJRT_FFI_Extension", 3),
    "MemoryDescriptions": ("PJRT_MemoryDescriptions_Extension", 1),
    "Shardings": ("PJRT_Shardings_Extension", 1),
}

__all__ = [
    "CALLBACKS",
    "ENUMS",
    "EXTENSIONS",
    "FFI_FUNCTION_TYPES",
    "FFI_VERSION",
    "FFI_VOID_FUNCTIONS",
    "FUNCTIONS",
    "MAJOR",
    "MINOR",
    "OLDEST_MINOR",
    "SCALARS",
    "STRUCTS_BY_NAME",
    "VOID_FUNCTIONS",
    "Enum",
    "Function",
    "Struct",
]
