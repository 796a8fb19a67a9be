"""The structs of the PJRT core header, in the notation that `layout.py` explains."""

STRUCTS = """
PJRT_Extension_Base raw
    size_t struct_size
    PJRT_Extension_Type type
    PJRT_Extension_Base * next
PJRT_Api_Version
    out int major_version
    out int minor_version
PJRT_Error_Destroy_Args
    PJRT_Error * error
PJRT_Error_Message_Args
    const PJRT_Error * error
    out const char * message
    out size_t message_size
PJRT_Error_FunctionTable raw
    size_t struct_size
    size_t instance_size
    PJRT_Extension_Base * extension_start
    void (*)(PJRT_Error *) destroy
    void (*)(const PJRT_Error *, const char **, size_t *) message
    PJRT_Error_Code (*)(const PJRT_Error *) get_code
    void (*)(const PJRT_Error *, PJRT_Error_PayloadVisitor, void *) for_each_payload
PJRT_Error raw
    @107 const PJRT_Error_FunctionTable * vtable
PJRT_Error_GetCode_Args
    const PJRT_Error * error
    out PJRT_Error_Code code
PJRT_Error_ForEachPayload_Args
    const PJRT_Error * error
    PJRT_Error_PayloadVisitor visitor
    void * user_arg
PJRT_NamedValue
    const char * name
    size_t name_size
    PJRT_NamedValue_Type type
    | const char * string_value
    | int64_t int64_value
    | const int64_t * int64_array_value
    | float float_value
    | bool bool_value
    size_t value_size
PJRT_Plugin_Initialize_Args
PJRT_Plugin_Attributes_Args
    out const PJRT_NamedValue * attributes
    out size_t num_attributes
PJRT_Event_Destroy_Args
    PJRT_Event * event
PJRT_Event_IsReady_Args
    PJRT_Event * event
    out bool is_ready
PJRT_Event_Error_Args
    PJRT_Event * event
PJRT_Event_Await_Args
    PJRT_Event * event
PJRT_Event_OnReady_Args
    PJRT_Event * event
    PJRT_Event_OnReadyCallback callback
    void * user_arg
PJRT_Event_Create_Args
    out PJRT_Event * event
PJRT_Event_Set_Args
    PJRT_Event * event
    PJRT_Error_Code error_code
    const char * error_message
    size_t error_message_size
PJRT_Memory_FunctionTable
    size_t instance_struct_size
    void *(*)(PJRT_Memory *, const void *) get_user_data
    void (*)(PJRT_Memory *, const void *, void *, void (*)(void *)) set_user_data
PJRT_Memory raw
    @105 const PJRT_Memory_FunctionTable * vtable
PJRT_KeyValueGetCallback_Args
    const char * key
    size_t key_size
    int timeout_in_ms
    PJRT_CallbackError * callback_error
    void * user_arg
    out char * value
    out size_t value_size
    out PJRT_KeyValueGetCallback_ValueDeleter value_deleter_callback
PJRT_KeyValueTryGetCallback_Args
    const char * key
    size_t key_size
    PJRT_CallbackError * callback_error
    void * user_arg
    out char * value
    out size_t value_size
    out PJRT_KeyValueTryGetCallback_ValueDeleter value_deleter_callback
PJRT_KeyValuePutCallback_Args
    const char * key
    size_t key_size
    const char * value
    size_t value_size
    PJRT_CallbackError * callback_error
    void * user_arg
PJRT_Client_Create_Args
    const PJRT_NamedValue * create_options
    size_t num_options
    PJRT_KeyValueGetCallback kv_get_callback
    void * kv_get_user_arg
    PJRT_KeyValuePutCallback kv_put_callback
    void * kv_put_user_arg
    out PJRT_Client * client
    @61 PJRT_KeyValueTryGetCallback kv_try_get_callback
    @61 void * kv_try_get_user_arg
PJRT_Client_Destroy_Args
    PJRT_Client * client
PJRT_Client_PlatformName_Args
    PJRT_Client * client
    out const char * platform_name
    out size_t platform_name_size
PJRT_Client_ProcessIndex_Args
    PJRT_Client * client
    out int process_index
PJRT_Client_PlatformVersion_Args
    PJRT_Client * client
    out const char * platform_version
    out size_t platform_version_size
PJRT_Client_TopologyDescription_Args
    PJRT_Client * client
    out PJRT_TopologyDescription * topology
PJRT_Client_Devices_Args
    PJRT_Client * client
    out PJRT_Device *const * devices
    out size_t num_devices
PJRT_Client_AddressableDevices_Args
    PJRT_Client * client
    out PJRT_Device *const * addressable_devices
    out size_t num_addressable_devices
PJRT_Client_LookupDevice_Args
    PJRT_Client * client
    int id
    out PJRT_Device * device
PJRT_Client_LookupAddressableDevice_Args
    PJRT_Client * client
    int local_hardware_id
    out PJRT_Device * addressable_device
PJRT_ProcessInfo raw
    size_t struct_size
    int task_id
    uint64_t incarnation_id
    PJRT_ProcessState state
    int error_code
    const char * error_message
    size_t error_message_size
PJRT_Client_UpdateGlobalProcessInfo_Args
    PJRT_Client * client
    PJRT_ProcessInfo * process_infos
    size_t num_process_infos
PJRT_Client_AddressableMemories_Args
    PJRT_Client * client
    out PJRT_Memory *const * addressable_memories
    out size_t num_addressable_memories
PJRT_Program
    inout char * code
    size_t code_size
    const char * format
    size_t format_size
PJRT_Client_Compile_Args
    PJRT_Client * client
    const PJRT_Program * program
    const char * compile_options
    size_t compile_options_size
    out PJRT_LoadedExecutable * executable
PJRT_Client_Load_Args
    PJRT_Client * client
    PJRT_Executable * executable
    const char * compile_options
    size_t compile_options_size
    out PJRT_LoadedExecutable * loaded_executable
PJRT_Client_DefaultDeviceAssignment_Args
    PJRT_Client * client
    int num_replicas
    int num_partitions
    size_t default_assignment_size
    inout int * default_assignment
PJRT_Client_DmaMap_Args
    PJRT_Client * client
    void * data
    size_t size
PJRT_Client_DmaUnmap_Args
    PJRT_Client * client
    void * data
PJRT_AsyncHostToDeviceTransferManager_Destroy_Args
    PJRT_AsyncHostToDeviceTransferManager * transfer_manager
PJRT_AsyncHostToDeviceTransferManager_TransferData_Args
    PJRT_AsyncHostToDeviceTransferManager * transfer_manager
    int buffer_index
    const void * data
    int64_t offset
    int64_t transfer_size
    bool is_last_transfer
    out PJRT_Event * done_with_h2d_transfer
PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args
    PJRT_AsyncHostToDeviceTransferManager * transfer_manager
    int buffer_index
    out PJRT_Buffer * buffer_out
PJRT_AsyncHostToDeviceTransferManager_Device_Args
    PJRT_AsyncHostToDeviceTransferManager * transfer_manager
    out PJRT_Device * device_out
PJRT_AsyncHostToDeviceTransferManager_BufferCount_Args
    PJRT_AsyncHostToDeviceTransferManager * transfer_manager
    out size_t buffer_count
PJRT_AsyncHostToDeviceTransferManager_BufferSize_Args
    PJRT_AsyncHostToDeviceTransferManager * transfer_manager
    int buffer_index
    out size_t buffer_size
PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args
    PJRT_AsyncHostToDeviceTransferManager * transfer_manager
    int buffer_index
    PJRT_Error_Code error_code
    const char * error_message
    size_t error_message_size
PJRT_AsyncHostToDeviceTransferManager_AddMetadata_Args
    PJRT_AsyncHostToDeviceTransferManager * transfer_manager
    const PJRT_NamedValue * transfer_metadata
    size_t num_metadata
PJRT_Buffer_MemoryLayout_Tiled
    const int64_t * minor_to_major
    size_t minor_to_major_size
    const int64_t * tile_dims
    const size_t * tile_dim_sizes
    size_t num_tiles
PJRT_Buffer_MemoryLayout_Strides
    const int64_t * byte_strides
    size_t num_byte_strides
PJRT_Buffer_MemoryLayout
    | PJRT_Buffer_MemoryLayout_Tiled tiled
    | PJRT_Buffer_MemoryLayout_Strides strides
    PJRT_Buffer_MemoryLayout_Type type
PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args
    PJRT_AsyncHostToDeviceTransferManager * transfer_manager
    int buffer_index
    const void * data
    const int64_t * shape_dims
    size_t shape_num_dims
    PJRT_Buffer_Type shape_element_type
    PJRT_Buffer_MemoryLayout * shape_layout
    out PJRT_Event * done_with_h2d_transfer
PJRT_Client_CreateUninitializedBuffer_Args
    PJRT_Client * client
    const int64_t * shape_dims
    size_t shape_num_dims
    PJRT_Buffer_Type shape_element_type
    PJRT_Buffer_MemoryLayout * shape_layout
    PJRT_Device * device
    PJRT_Memory * memory
    out PJRT_Buffer * buffer
PJRT_Client_CreateErrorBuffer_Args
    PJRT_Client * client
    PJRT_Error_Code error_code
    const char * error_message
    size_t error_message_size
    const int64_t * shape_dims
    size_t shape_num_dims
    PJRT_Buffer_Type shape_element_type
    PJRT_Buffer_MemoryLayout * shape_layout
    PJRT_Memory * memory
    out PJRT_Buffer * buffer
    @103 const PJRT_NamedValue * payload
    @103 size_t num_payload
PJRT_Client_CreateAliasBuffer_Args
    PJRT_Client * client
    PJRT_Memory * memory
    const int64_t * shape_dims
    size_t shape_num_dims
    PJRT_Buffer_Type shape_element_type
    PJRT_Buffer_MemoryLayout * shape_layout
    out PJRT_Buffer * alias_buffer
    out PJRT_FulfillAliasBufferCallback * fulfill_alias_buffer_cb
PJRT_Client_FulfillAliasBuffer_Args
    PJRT_Client * client
    PJRT_Buffer * buffer
    PJRT_Error_Code status_code
    const char * error_message
    size_t error_message_size
    PJRT_FulfillAliasBufferCallback * fulfill_alias_buffer_cb
PJRT_Client_BufferFromHostBuffer_Args
    PJRT_Client * client
    const void * data
    PJRT_Buffer_Type type
    const int64_t * dims
    size_t num_dims
    const int64_t * byte_strides
    size_t num_byte_strides
    PJRT_HostBufferSemantics host_buffer_semantics
    PJRT_Device * device
    PJRT_Memory * memory
    PJRT_Buffer_MemoryLayout * device_layout
    out PJRT_Event * done_with_host_buffer
    out PJRT_Buffer * buffer
PJRT_Client_CreateViewOfDeviceBuffer_Args
    PJRT_Client * client
    void * device_buffer_ptr
    const int64_t * dims
    size_t num_dims
    PJRT_Buffer_Type element_type
    PJRT_Buffer_MemoryLayout * layout
    PJRT_Device * device
    void (*)(void *, void *) on_delete_callback
    void * on_delete_callback_arg
    intptr_t stream
    out PJRT_Buffer * buffer
    @66 PJRT_Memory * memory
PJRT_ShapeSpec
    const int64_t * dims
    size_t num_dims
    PJRT_Buffer_Type element_type
PJRT_Client_CreateBuffersForAsyncHostToDevice_Args
    PJRT_Client * client
    PJRT_ShapeSpec * shape_specs
    size_t num_shape_specs
    PJRT_Buffer_MemoryLayout ** device_layouts
    size_t num_device_layouts
    PJRT_Memory * memory
    out PJRT_AsyncHostToDeviceTransferManager * transfer_manager
PJRT_DeviceDescription_Id_Args
    PJRT_DeviceDescription * device_description
    out int id
PJRT_DeviceDescription_ProcessIndex_Args
    PJRT_DeviceDescription * device_description
    out int process_index
PJRT_DeviceDescription_Attributes_Args
    PJRT_DeviceDescription * device_description
    out size_t num_attributes
    out const PJRT_NamedValue * attributes
PJRT_DeviceDescription_Kind_Args
    PJRT_DeviceDescription * device_description
    out const char * device_kind
    out size_t device_kind_size
PJRT_DeviceDescription_DebugString_Args
    PJRT_DeviceDescription * device_description
    out const char * debug_string
    out size_t debug_string_size
PJRT_DeviceDescription_ToString_Args
    PJRT_DeviceDescription * device_description
    out const char * to_string
    out size_t to_string_size
PJRT_Device_GetDescription_Args
    PJRT_Device * device
    out PJRT_DeviceDescription * device_description
PJRT_Device_IsAddressable_Args
    PJRT_Device * device
    out bool is_addressable
PJRT_Device_LocalHardwareId_Args
    PJRT_Device * device
    out int local_hardware_id
PJRT_Device_AddressableMemories_Args
    PJRT_Device * device
    out PJRT_Memory *const * memories
    out size_t num_memories
PJRT_Device_DefaultMemory_Args
    PJRT_Device * device
    out PJRT_Memory * memory
PJRT_Device_MemoryStats_Args
    PJRT_Device * device
    out int64_t bytes_in_use
    out int64_t peak_bytes_in_use
    out bool peak_bytes_in_use_is_set
    out int64_t num_allocs
    out bool num_allocs_is_set
    out int64_t largest_alloc_size
    out bool largest_alloc_size_is_set
    out int64_t bytes_limit
    out bool bytes_limit_is_set
    out int64_t bytes_reserved
    out bool bytes_reserved_is_set
    out int64_t peak_bytes_reserved
    out bool peak_bytes_reserved_is_set
    out int64_t bytes_reservable_limit
    out bool bytes_reservable_limit_is_set
    out int64_t largest_free_block_bytes
    out bool largest_free_block_bytes_is_set
    out int64_t pool_bytes
    out bool pool_bytes_is_set
    out int64_t peak_pool_bytes
    out bool peak_pool_bytes_is_set
    @113 out int64_t peak_allocated_bytes
    @113 out bool peak_allocated_bytes_is_set
PJRT_Device_ClearMemoryStats_Args
    PJRT_Device * device
PJRT_Device_PoisonExecution_Args
    PJRT_Device * device
    int32_t launch_id
    PJRT_Error_Code error_code
    const char * error_message
    size_t error_message_size
    out bool poisoned
    @100 const PJRT_NamedValue * payload
    @100 size_t num_payload
PJRT_Device_GetAttributes_Args
    PJRT_Device * device
    out const PJRT_NamedValue * attributes
    out size_t num_attributes
    out PJRT_Device_Attributes * device_attributes
    out void (*)(PJRT_Device_Attributes *) attributes_deleter
PJRT_Device_CreateAsyncTrackingEvent_Args
    PJRT_Device * device
    const char * description
    size_t description_size
    out PJRT_AsyncTrackingEvent * event
PJRT_AsyncTrackingEvent_Destroy_Args
    PJRT_AsyncTrackingEvent * event
PJRT_Memory_Id_Args
    PJRT_Memory * memory
    out int id
PJRT_Memory_Kind_Args
    PJRT_Memory * memory
    out const char * kind
    out size_t kind_size
PJRT_Memory_Kind_Id_Args
    PJRT_Memory * memory
    out int kind_id
PJRT_Memory_DebugString_Args
    PJRT_Memory * memory
    out const char * debug_string
    out size_t debug_string_size
PJRT_Memory_ToString_Args
    PJRT_Memory * memory
    out const char * to_string
    out size_t to_string_size
PJRT_Memory_AddressableByDevices_Args
    PJRT_Memory * memory
    out PJRT_Device *const * devices
    out size_t num_devices
PJRT_ExecuteContext_Create_Args
    out PJRT_ExecuteContext * context
PJRT_ExecuteContext_Destroy_Args
    PJRT_ExecuteContext * context
PJRT_Executable_Destroy_Args
    PJRT_Executable * executable
PJRT_LoadedExecutable_Destroy_Args
    PJRT_LoadedExecutable * executable
PJRT_LoadedExecutable_GetExecutable_Args
    PJRT_LoadedExecutable * loaded_executable
    out PJRT_Executable * executable
PJRT_LoadedExecutable_GetDeviceAssignment_Args
    PJRT_LoadedExecutable * executable
    out const char * serialized_bytes
    out size_t serialized_bytes_size
    out PJRT_DeviceAssignmentSerialized * serialized_device_assignment
    out void (*)(PJRT_DeviceAssignmentSerialized *) serialized_device_assignment_deleter
PJRT_Executable_Name_Args
    PJRT_Executable * executable
    out const char * executable_name
    out size_t executable_name_size
PJRT_Executable_NumReplicas_Args
    PJRT_Executable * executable
    out size_t num_replicas
PJRT_Executable_NumPartitions_Args
    PJRT_Executable * executable
    out size_t num_partitions
PJRT_LogicalDeviceIds raw unsized
    int replica
    int partition
PJRT_LoadedExecutable_AddressableDevices_Args
    PJRT_LoadedExecutable * executable
    out PJRT_Device *const * addressable_devices
    out size_t num_addressable_devices
PJRT_LoadedExecutable_AddressableDeviceLogicalIds_Args
    PJRT_LoadedExecutable * executable
    out PJRT_LogicalDeviceIds * addressable_device_logical_ids
    out size_t num_addressable_device_logical_ids
PJRT_Executable_OptimizedProgram_Args
    PJRT_Executable * executable
    inout PJRT_Program * program
PJRT_LoadedExecutable_Delete_Args
    PJRT_LoadedExecutable * executable
PJRT_LoadedExecutable_IsDeleted_Args
    PJRT_LoadedExecutable * executable
    out bool is_deleted
PJRT_Chunk raw unsized
    void * data
    size_t size
    void (*)(void *, void *) deleter
    void * deleter_arg
PJRT_SendCallbackInfo raw
    int64_t channel_id
    void * user_arg
    PJRT_SendCallback send_callback
PJRT_RecvCallbackInfo raw
    int64_t channel_id
    void * user_arg
    PJRT_RecvCallback recv_callback
PJRT_HloOutputCallbackInfo raw
    void * user_arg
    PJRT_HloOutputCallback callback
    int64_t callback_id
    size_t num_operands
PJRT_ExecuteOptions
    PJRT_SendCallbackInfo ** send_callbacks
    PJRT_RecvCallbackInfo ** recv_callbacks
    size_t num_send_ops
    size_t num_recv_ops
    int launch_id
    @39 const int64_t * non_donatable_input_indices
    @39 size_t num_non_donatable_input_indices
    @64 PJRT_ExecuteContext * context
    @76 const char * call_location
    @78 size_t num_tasks
    @78 int * task_ids
    @78 int64_t * incarnation_ids
    @97 PJRT_MultiSlice_Config * multi_slice_config
    @108 bool use_major_to_minor_data_layout_for_callbacks
    @112 PJRT_HloOutputCallbackInfo * hlo_output_callbacks
    @112 size_t num_hlo_output_callbacks
PJRT_LoadedExecutable_Execute_Args
    PJRT_LoadedExecutable * executable
    PJRT_ExecuteOptions * options
    PJRT_Buffer *const *const * argument_lists
    size_t num_devices
    size_t num_args
    inout PJRT_Buffer **const * output_lists
    inout PJRT_Event ** device_complete_events
    PJRT_Device * execute_device
PJRT_Executable_NumOutputs_Args
    PJRT_Executable * executable
    out size_t num_outputs
PJRT_Executable_SizeOfGeneratedCodeInBytes_Args
    PJRT_Executable * executable
    out int64_t size_in_bytes
PJRT_Executable_Fingerprint_Args
    PJRT_Executable * executable
    out const char * executable_fingerprint
    out size_t executable_fingerprint_size
PJRT_Executable_GetCostAnalysis_Args
    PJRT_Executable * executable
    out size_t num_properties
    out const PJRT_NamedValue * properties
PJRT_Executable_GetCompiledMemoryStats_Args
    PJRT_Executable * executable
    out int64_t generated_code_size_in_bytes
    out int64_t argument_size_in_bytes
    out int64_t output_size_in_bytes
    out int64_t alias_size_in_bytes
    out int64_t temp_size_in_bytes
    @43 out int64_t host_generated_code_size_in_bytes
    @43 out int64_t host_argument_size_in_bytes
    @43 out int64_t host_output_size_in_bytes
    @43 out int64_t host_alias_size_in_bytes
    @43 out int64_t host_temp_size_in_bytes
    @72 out int64_t peak_memory_in_bytes
    @90 out int64_t total_size_in_bytes
    @104 out int64_t total_allocation_bytes
    @104 out int64_t indefinite_allocations
    @104 out int64_t peak_unpadded_heap_bytes
PJRT_Executable_OutputElementTypes_Args
    PJRT_Executable * executable
    out PJRT_Buffer_Type * output_types
    out size_t num_output_types
PJRT_Executable_OutputDimensions_Args
    PJRT_Executable * executable
    out size_t num_outputs
    out const int64_t * dims
    out const size_t * dim_sizes
PJRT_Executable_ParameterMemoryKinds_Args
    PJRT_Executable * executable
    out size_t num_parameters
    out const char *const * memory_kinds
    out const size_t * memory_kind_sizes
PJRT_Executable_OutputMemoryKinds_Args
    PJRT_Executable * executable
    out size_t num_outputs
    out const char *const * memory_kinds
    out const size_t * memory_kind_sizes
PJRT_Executable_Serialize_Args
    const PJRT_Executable * executable
    out const char * serialized_bytes
    out size_t serialized_bytes_size
    out PJRT_SerializedExecutable * serialized_executable
    out void (*)(PJRT_SerializedExecutable *) serialized_executable_deleter
PJRT_Executable_GetCompileOptions_Args
    PJRT_Executable * executable
    out const char * serialized_bytes
    out size_t serialized_bytes_size
    out PJRT_SerializedCompileOptions * serialized_compile_options
    out void (*)(PJRT_SerializedCompileOptions *) serialized_compile_options_deleter
PJRT_LoadOptions raw
    size_t struct_size
    const int32_t * computation_origin
    size_t computation_origin_size
    PJRT_MultiSlice_Config * multi_slice_config
PJRT_Executable_DeserializeAndLoad_Args
    PJRT_Client * client
    const char * serialized_executable
    size_t serialized_executable_size
    out PJRT_LoadedExecutable * loaded_executable
    @71 const char * overridden_serialized_compile_options
    @71 size_t overridden_serialized_compile_options_size
    @111 PJRT_LoadOptions * load_options
PJRT_LoadedExecutable_Fingerprint_Args
    PJRT_LoadedExecutable * executable
    out const char * executable_fingerprint
    out size_t executable_fingerprint_size
PJRT_Buffer_Destroy_Args
    PJRT_Buffer * buffer
PJRT_Buffer_ElementType_Args
    PJRT_Buffer * buffer
    out PJRT_Buffer_Type type
PJRT_Buffer_Dimensions_Args
    PJRT_Buffer * buffer
    out const int64_t * dims
    out size_t num_dims
PJRT_Buffer_UnpaddedDimensions_Args
    PJRT_Buffer * buffer
    out const int64_t * unpadded_dims
    out size_t num_dims
PJRT_Buffer_DynamicDimensionIndices_Args
    PJRT_Buffer * buffer
    out const size_t * dynamic_dim_indices
    out size_t num_dynamic_dims
PJRT_Buffer_GetMemoryLayout_Args
    PJRT_Buffer * buffer
    out PJRT_Buffer_MemoryLayout layout
PJRT_Buffer_ToHostBuffer_Args
    PJRT_Buffer * src
    PJRT_Buffer_MemoryLayout * host_layout
    inout void * dst
    inout size_t dst_size
    out PJRT_Event * event
PJRT_Buffer_OnDeviceSizeInBytes_Args
    PJRT_Buffer * buffer
    out size_t on_device_size_in_bytes
PJRT_Buffer_Delete_Args
    PJRT_Buffer * buffer
PJRT_Buffer_IsDeleted_Args
    PJRT_Buffer * buffer
    out bool is_deleted
PJRT_Buffer_CopyRawToHost_Args
    PJRT_Buffer * buffer
    void * dst
    int64_t offset
    int64_t transfer_size
    out PJRT_Event * event
PJRT_Buffer_CopyRawToHostFuture_Callback_Args raw
    size_t struct_size
    void * callback_data
    PJRT_Error_Code error_code
    const char * error_message
    size_t error_message_size
    void * dst
PJRT_Buffer_CopyRawToHostFuture_Args
    PJRT_Buffer * buffer
    int64_t offset
    int64_t transfer_size
    out PJRT_Event * event
    out void * callback_data
    out void (*)(PJRT_Buffer_CopyRawToHostFuture_Callback_Args *) future_ready_callback
PJRT_Buffer_CopyToDevice_Args
    PJRT_Buffer * buffer
    PJRT_Device * dst_device
    out PJRT_Buffer * dst_buffer
PJRT_Buffer_CopyToMemory_Args
    PJRT_Buffer * buffer
    PJRT_Memory * dst_memory
    out PJRT_Buffer * dst_buffer
PJRT_Buffer_Bitcast_Args
    PJRT_Buffer * buffer
    PJRT_Buffer_Type element_type
    const int64_t * dims
    size_t num_dims
    PJRT_Buffer_MemoryLayout * device_layout
    out PJRT_Buffer * out_buffer
PJRT_Buffer_IsOnCpu_Args
    PJRT_Buffer * buffer
    out bool is_on_cpu
PJRT_Buffer_Device_Args
    PJRT_Buffer * buffer
    out PJRT_Device * device
PJRT_Buffer_Memory_Args
    PJRT_Buffer * buffer
    out PJRT_Memory * memory
PJRT_Buffer_ReadyEvent_Args
    PJRT_Buffer * buffer
    out PJRT_Event * event
PJRT_Buffer_UnsafePointer_Args
    PJRT_Buffer * buffer
    out uintptr_t buffer_pointer
PJRT_Buffer_IncreaseExternalReferenceCount_Args
    PJRT_Buffer * buffer
PJRT_Buffer_DecreaseExternalReferenceCount_Args
    PJRT_Buffer * buffer
PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args
    PJRT_Buffer * buffer
    out void * device_memory_ptr
PJRT_Buffer_DonateWithControlDependency_Callback_Args raw
    size_t struct_size
    void * callback_data
    PJRT_Error_Code error_code
    const char * error_message
    size_t error_message_size
PJRT_Buffer_DonateWithControlDependency_Args
    PJRT_Buffer * buffer
    out void * callback_data
    out void (*)(PJRT_Buffer_DonateWithControlDependency_Callback_Args *) dependency_ready_callback
    out PJRT_Buffer * out_buffer
PJRT_CopyToDeviceStream_Destroy_Args
    PJRT_CopyToDeviceStream * stream
PJRT_CopyToDeviceStream_AddChunk_Args
    PJRT_CopyToDeviceStream * stream
    PJRT_Chunk * chunk
    out PJRT_Event * transfer_complete
PJRT_CopyToDeviceStream_TotalBytes_Args
    PJRT_CopyToDeviceStream * stream
    out int64_t total_bytes
PJRT_CopyToDeviceStream_GranuleSize_Args
    PJRT_CopyToDeviceStream * stream
    out int64_t granule_size_in_bytes
PJRT_CopyToDeviceStream_CurrentBytes_Args
    PJRT_CopyToDeviceStream * stream
    out int64_t current_bytes
PJRT_TopologyDescription_Create_Args
    const char * topology_name
    size_t topology_name_size
    const PJRT_NamedValue * create_options
    size_t num_options
    out PJRT_TopologyDescription * topology
PJRT_TopologyDescription_Destroy_Args
    PJRT_TopologyDescription * topology
PJRT_TopologyDescription_PlatformVersion_Args
    PJRT_TopologyDescription * topology
    out const char * platform_version
    out size_t platform_version_size
PJRT_TopologyDescription_PlatformName_Args
    const PJRT_TopologyDescription * topology
    out const char * platform_name
    out size_t platform_name_size
PJRT_TopologyDescription_GetDeviceDescriptions_Args
    const PJRT_TopologyDescription * topology
    out PJRT_DeviceDescription *const * descriptions
    out size_t num_descriptions
PJRT_TopologyDescription_Serialize_Args
    PJRT_TopologyDescription * topology
    out const char * serialized_bytes
    out size_t serialized_bytes_size
    out PJRT_SerializedTopology * serialized_topology
    out void (*)(PJRT_SerializedTopology *) serialized_topology_deleter
PJRT_TopologyDescription_Deserialize_Args
    const char * serialized_topology
    size_t serialized_topology_size
    out PJRT_TopologyDescription * topology
PJRT_TopologyDescription_Attributes_Args
    PJRT_TopologyDescription * topology
    out const PJRT_NamedValue * attributes
    out size_t num_attributes
PJRT_TopologyDescription_Fingerprint_Args
    const PJRT_TopologyDescription * topology
    out uint64_t fingerprint
PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace_Args
    const PJRT_TopologyDescription * topology
    int memory_space_kind_id
    const int64_t * dims
    size_t num_dims
    PJRT_Buffer_Type element_type
    const PJRT_Buffer_MemoryLayout * layout
    out const char * serialized_shape
    out size_t serialized_shape_size
    out void (*)(const char *) serialized_shape_deleter
PJRT_TopologyDescription_GetMemorySpaceKindIds_Args
    const PJRT_TopologyDescription * topology
    out const int * memory_space_kind_ids
    out size_t num_memory_space_kind_ids
PJRT_Compile_Args
    const PJRT_TopologyDescription * topology
    const PJRT_Program * program
    const char * compile_options
    size_t compile_options_size
    PJRT_Client * client
    out PJRT_Executable * executable
"""
