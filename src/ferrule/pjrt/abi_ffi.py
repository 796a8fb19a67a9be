"""The extensions of the PJRT table that Ferrule offers, and XLA's FFI (foreign functions called by a program).

Structs are in the notation that `layout.py` explains. In an extension's struct every `PJRT_x * name` field after `base`
is a function; all take one pointer to `PJRT_x_Args`.
"""

EXTENSION_STRUCTS = """
PJRT_FFI_Type_Info raw unsized
    void (*)(void *) deleter
    void (*)() serialize
    void (*)() deserialize
PJRT_FFI_Type_Register_Args
    const char * type_name
    size_t type_name_size
    inout int64_t type_id
    PJRT_FFI_Type_Info * type_info
PJRT_FFI_UserData raw unsized
    int64_t type_id
    void * data
PJRT_FFI_UserData_Add_Args
    PJRT_ExecuteContext * context
    PJRT_FFI_UserData user_data
PJRT_FFI_Register_Handler_Args raw
    size_t struct_size
    const char * target_name
    size_t target_name_size
    void * handler
    const char * platform_name
    size_t platform_name_size
    PJRT_FFI_Handler_TraitsBits traits
PJRT_FFI_Extension raw
    PJRT_Extension_Base base
    PJRT_FFI_Type_Register * type_register
    PJRT_FFI_UserData_Add * user_data_add
    PJRT_FFI_Register_Handler * register_handler
PJRT_Layouts_MemoryLayout_Destroy_Args
    PJRT_Layouts_MemoryLayout * layout
PJRT_Layouts_MemoryLayout_Serialize_Args
    PJRT_Layouts_MemoryLayout * layout
    out const char * serialized_bytes
    out size_t serialized_bytes_size
    out PJRT_Layouts_SerializedLayout * serialized_layout
    out void (*)(PJRT_Layouts_SerializedLayout *) serialized_layout_deleter
PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args
    PJRT_Buffer * buffer
    out PJRT_Layouts_MemoryLayout * layout
PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args
    PJRT_Client * client
    PJRT_Buffer_Type type
    const int64_t * dims
    size_t num_dims
    out PJRT_Layouts_MemoryLayout * layout
PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args
    PJRT_TopologyDescription * topology_description
    PJRT_Buffer_Type type
    const int64_t * dims
    size_t num_dims
    out PJRT_Layouts_MemoryLayout * layout
PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args
    PJRT_Executable * executable
    out size_t num_outputs
    out PJRT_Layouts_MemoryLayout ** layouts
PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args
    PJRT_Executable * executable
    out size_t num_parameters
    out PJRT_Layouts_MemoryLayout ** layouts
PJRT_Layouts_Extension raw
    PJRT_Extension_Base base
    PJRT_Layouts_MemoryLayout_Destroy * PJRT_Layouts_MemoryLayout_Destroy
    PJRT_Layouts_MemoryLayout_Serialize * PJRT_Layouts_MemoryLayout_Serialize
    PJRT_Layouts_PJRT_Client_GetDefaultLayout * PJRT_Layouts_PJRT_Client_GetDefaultLayout
    PJRT_Layouts_PJRT_Buffer_MemoryLayout * PJRT_Layouts_PJRT_Buffer_MemoryLayout
    PJRT_Layouts_PJRT_Topology_GetDefaultLayout * PJRT_Layouts_PJRT_Topology_GetDefaultLayout
    PJRT_Layouts_PJRT_Executable_GetOutputLayouts * PJRT_Layouts_PJRT_Executable_GetOutputLayouts
    PJRT_Layouts_PJRT_Executable_GetParameterLayouts * PJRT_Layouts_PJRT_Executable_GetParameterLayouts
PJRT_DeviceDescription_MemoryDescriptions_Args
    PJRT_DeviceDescription * device_description
    out const PJRT_MemoryDescription *const * memory_descriptions
    out size_t num_memory_descriptions
    out size_t default_memory_index
PJRT_MemoryDescription_Kind_Args
    const PJRT_MemoryDescription * memory_description
    out const char * kind
    out size_t kind_size
    out int kind_id
PJRT_MemoryDescriptions_Extension raw
    PJRT_Extension_Base base
    PJRT_DeviceDescription_MemoryDescriptions * PJRT_DeviceDescription_MemoryDescriptions
    PJRT_MemoryDescription_Kind * PJRT_MemoryDescription_Kind
PJRT_Shardings_PJRT_Executable_ParameterShardings_Args
    PJRT_Executable * executable
    out size_t num_parameters
    out const char *const * shardings
    out const size_t * sharding_sizes
PJRT_Shardings_PJRT_Executable_OutputShardings_Args
    PJRT_Executable * executable
    out size_t num_outputs
    out const char *const * shardings
    out const size_t * sharding_sizes
PJRT_Shardings_Extension raw
    PJRT_Extension_Base base
    PJRT_Shardings_PJRT_Executable_ParameterShardings * PJRT_Shardings_PJRT_Executable_ParameterShardings
    PJRT_Shardings_PJRT_Executable_OutputShardings * PJRT_Shardings_PJRT_Executable_OutputShardings
"""

# The newest version of the FFI that is offered (jaxlib 0.12); handlers made for older ones work, too. Marks like `@4`
# count its minor versions: 3 is jaxlib 0.10's, 4 jaxlib 0.11's. Names that version 4 changed are written in the older
# way (XLA_FFI_InvokeContext is XLA_FFI_ExecutionContext here, XLA_FFI_Error_GetDetails XLA_FFI_Error_GetMessage).
FFI_VERSION = (0, 5)

FFI_STRUCTS = """
XLA_FFI_Extension_Base raw
    size_t struct_size
    XLA_FFI_Extension_Type type
    XLA_FFI_Extension_Base * next
XLA_FFI_Api_Version
    out int major_version
    out int minor_version
XLA_FFI_Error_Create_Args
    const char * message
    XLA_FFI_Error_Code errc
XLA_FFI_Error_GetMessage_Args
    XLA_FFI_Error * error
    out const char * message
    @4 out XLA_FFI_Error_Code errc
XLA_FFI_Error_Destroy_Args
    XLA_FFI_Error * error
XLA_FFI_Buffer
    XLA_FFI_DataType dtype
    void * data
    int64_t rank
    int64_t * dims
XLA_FFI_ByteSpan raw unsized
    const char * ptr
    size_t len
XLA_FFI_Scalar raw unsized
    XLA_FFI_DataType dtype
    void * value
XLA_FFI_Array raw unsized
    XLA_FFI_DataType dtype
    size_t size
    void * data
XLA_FFI_TypeId raw unsized
    int64_t type_id
XLA_FFI_TypeInfo
    void (*)(void *) deleter
XLA_FFI_Future_Create_Args until=extension_start
    out XLA_FFI_Future * future
XLA_FFI_Future_SetAvailable_Args
    XLA_FFI_Future * future
XLA_FFI_Future_SetError_Args
    XLA_FFI_Future * future
    XLA_FFI_Error * error
XLA_FFI_Args
    int64_t size
    XLA_FFI_ArgType * types
    void ** args
XLA_FFI_Rets
    int64_t size
    XLA_FFI_RetType * types
    void ** rets
XLA_FFI_Attrs
    int64_t size
    XLA_FFI_AttrType * types
    XLA_FFI_ByteSpan ** names
    void ** attrs
XLA_FFI_CallFrame until=attrs
    const XLA_FFI_Api * api
    XLA_FFI_ExecutionContext * ctx
    XLA_FFI_ExecutionStage stage
    XLA_FFI_Args args
    XLA_FFI_Rets rets
    XLA_FFI_Attrs attrs
    out XLA_FFI_Future * future
XLA_FFI_Handler_Bundle raw unsized
    XLA_FFI_Handler * instantiate
    XLA_FFI_Handler * prepare
    XLA_FFI_Handler * initialize
    XLA_FFI_Handler * execute
    @4 XLA_FFI_Handler * record
XLA_FFI_Handler_Register_Args
    XLA_FFI_ByteSpan name
    XLA_FFI_ByteSpan platform
    XLA_FFI_Handler_Bundle bundle
    XLA_FFI_Handler_Traits traits
XLA_FFI_Type_Register_Args until=type_id
    XLA_FFI_ByteSpan name
    inout XLA_FFI_TypeId * type_id
    const XLA_FFI_TypeInfo * type_info
XLA_FFI_ExecutionContext_Get_Args
    XLA_FFI_ExecutionContext * ctx
    XLA_FFI_TypeId * type_id
    out void * data
XLA_FFI_State_Set_Args
    XLA_FFI_ExecutionContext * ctx
    @3 XLA_FFI_ExecutionStage stage
    XLA_FFI_TypeId * type_id
    void * state
XLA_FFI_State_Get_Args
    XLA_FFI_ExecutionContext * ctx
    @3 XLA_FFI_ExecutionStage stage
    XLA_FFI_TypeId * type_id
    out void * state
XLA_FFI_Stream_Get_Args
    XLA_FFI_ExecutionContext * ctx
    out void * stream
XLA_FFI_DeviceMemory_Allocate_Args
    XLA_FFI_ExecutionContext * ctx
    size_t size
    size_t alignment
    out void * data
XLA_FFI_DeviceMemory_Free_Args
    XLA_FFI_ExecutionContext * ctx
    size_t size
    void * data
XLA_FFI_ThreadPool_Schedule_Args
    XLA_FFI_ExecutionContext * ctx
    XLA_FFI_Task * task
    void * data
XLA_FFI_ThreadPool_NumThreads_Args
    XLA_FFI_ExecutionContext * ctx
    out int64_t * num_threads
XLA_FFI_RunId_Get_Args
    XLA_FFI_ExecutionContext * ctx
    out int64_t run_id
XLA_FFI_DeviceOrdinal_Get_Args
    XLA_FFI_ExecutionContext * ctx
    out int32_t device_ordinal
XLA_FFI_InvokeContext_FindExtension_Args
    XLA_FFI_ExecutionContext * ctx
    int64_t extension_type
    out const XLA_FFI_Extension * extension
XLA_FFI_CustomOptions_Get_Args
    XLA_FFI_ExecutionContext * ctx
    out const XLA_FFI_Attrs * attrs
XLA_FFI_Metadata raw until=traits
    size_t struct_size
    XLA_FFI_Api_Version api_version
    XLA_FFI_Handler_Traits traits
    XLA_FFI_TypeId state_type_id
XLA_FFI_Metadata_Extension raw
    XLA_FFI_Extension_Base extension_base
    XLA_FFI_Metadata * metadata
XLA_FFI_Api
    XLA_FFI_Api_Version api_version
    const XLA_FFI_InternalApi * internal_api
    XLA_FFI_Error_Create * XLA_FFI_Error_Create
    XLA_FFI_Error_GetMessage * XLA_FFI_Error_GetMessage
    XLA_FFI_Error_Destroy * XLA_FFI_Error_Destroy
    XLA_FFI_Handler_Register * XLA_FFI_Handler_Register
    XLA_FFI_Stream_Get * XLA_FFI_Stream_Get
    XLA_FFI_Type_Register * XLA_FFI_Type_Register
    XLA_FFI_ExecutionContext_Get * XLA_FFI_ExecutionContext_Get
    XLA_FFI_State_Set * XLA_FFI_State_Set
    XLA_FFI_State_Get * XLA_FFI_State_Get
    XLA_FFI_DeviceMemory_Allocate * XLA_FFI_DeviceMemory_Allocate
    XLA_FFI_DeviceMemory_Free * XLA_FFI_DeviceMemory_Free
    XLA_FFI_ThreadPool_Schedule * XLA_FFI_ThreadPool_Schedule
    XLA_FFI_ThreadPool_NumThreads * XLA_FFI_ThreadPool_NumThreads
    XLA_FFI_Future_Create * XLA_FFI_Future_Create
    XLA_FFI_Future_SetAvailable * XLA_FFI_Future_SetAvailable
    XLA_FFI_Future_SetError * XLA_FFI_Future_SetError
    XLA_FFI_RunId_Get * XLA_FFI_RunId_Get
    XLA_FFI_DeviceOrdinal_Get * XLA_FFI_DeviceOrdinal_Get
    @4 XLA_FFI_InvokeContext_FindExtension * XLA_FFI_InvokeContext_FindExtension
    @5 XLA_FFI_CustomOptions_Get * XLA_FFI_CustomOptions_Get
"""

# Where a newer version put a field into the middle of a struct, older callers pass another layout, not just a shorter
# one. Those layouts, named after the last version that had them; the functions tell them apart by struct_size.
FFI_OLD_STRUCTS = """
XLA_FFI_State_Set_Args_0_2
    XLA_FFI_ExecutionContext * ctx
    XLA_FFI_TypeId * type_id
    void * state
XLA_FFI_State_Get_Args_0_2
    XLA_FFI_ExecutionContext * ctx
    XLA_FFI_TypeId * type_id
    out void * state
XLA_FFI_Handler_Bundle_0_3 raw unsized
    XLA_FFI_Handler * instantiate
    XLA_FFI_Handler * prepare
    XLA_FFI_Handler * initialize
    XLA_FFI_Handler * execute
XLA_FFI_Handler_Register_Args_0_3
    XLA_FFI_ByteSpan name
    XLA_FFI_ByteSpan platform
    XLA_FFI_Handler_Bundle_0_3 bundle
    XLA_FFI_Handler_Traits traits
"""

# Functions of the FFI table that return nothing; the others return XLA_FFI_Error * (null = success).
FFI_VOID_FUNCTIONS = ("XLA_FFI_Error_GetMessage", "XLA_FFI_Error_Destroy")

# Function types of the FFI that are not entries of its table.
FFI_FUNCTION_TYPES = {
    "XLA_FFI_Handler": "XLA_FFI_Error * (XLA_FFI_CallFrame * call_frame)",
    "XLA_FFI_Task": "void (void * data)",
}
