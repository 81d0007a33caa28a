//! Functions that the stand-in does not implement. They exist because cudarc 0.19.0 looks up every
//! function of the driver before its first call.

use std::ffi::c_int;

use crate::codes::NOT_SUPPORTED;

macro_rules! missing {
    ($($function:ident)*) => { $(
        #[unsafe(no_mangle)]
        extern "C" fn $function() -> c_int {
            NOT_SUPPORTED
        }
    )* };
}

missing! {
    cuArray3DCreate_v2 cuArray3DGetDescriptor_v2 cuArrayCreate_v2 cuArrayDestroy
    cuArrayGetDescriptor_v2 cuArrayGetMemoryRequirements cuArrayGetPlane
    cuArrayGetSparseProperties cuCoredumpGetAttribute cuCoredumpGetAttributeGlobal
    cuCoredumpSetAttribute cuCoredumpSetAttributeGlobal cuCtxAttach cuCtxDestroy_v2 cuCtxDetach
    cuCtxDisablePeerAccess cuCtxEnablePeerAccess cuCtxFromGreenCtx cuCtxGetApiVersion
    cuCtxGetCacheConfig cuCtxGetDevResource cuCtxGetDevice cuCtxGetDevice_v2
    cuCtxGetExecAffinity cuCtxGetFlags cuCtxGetId cuCtxGetLimit cuCtxGetSharedMemConfig
    cuCtxGetStreamPriorityRange cuCtxRecordEvent cuCtxResetPersistingL2Cache cuCtxSetCacheConfig
    cuCtxSetFlags cuCtxSetLimit cuCtxSetSharedMemConfig cuCtxSynchronize_v2 cuCtxWaitEvent
    cuDestroyExternalMemory cuDestroyExternalSemaphore cuDevResourceGenerateDesc
    cuDevSmResourceSplit cuDevSmResourceSplitByCount cuDeviceComputeCapability
    cuDeviceGetByPCIBusId cuDeviceGetDefaultMemPool cuDeviceGetDevResource
    cuDeviceGetExecAffinitySupport cuDeviceGetGraphMemAttribute
    cuDeviceGetHostAtomicCapabilities cuDeviceGetLuid cuDeviceGetMemPool
    cuDeviceGetP2PAtomicCapabilities cuDeviceGetP2PAttribute cuDeviceGetProperties
    cuDeviceGetTexture1DLinearMaxWidth cuDeviceGetUuid_v2 cuDeviceGraphMemTrim
    cuDevicePrimaryCtxGetState cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxSetFlags_v2
    cuDeviceRegisterAsyncNotification cuDeviceSetGraphMemAttribute cuDeviceSetMemPool
    cuDeviceUnregisterAsyncNotification cuEventElapsedTime_v2 cuEventRecordWithFlags
    cuExternalMemoryGetMappedBuffer cuExternalMemoryGetMappedMipmappedArray cuFuncGetAttribute
    cuFuncGetModule cuFuncGetName cuFuncGetParamInfo cuFuncIsLoaded cuFuncLoad
    cuFuncSetAttribute cuFuncSetBlockShape cuFuncSetCacheConfig cuFuncSetSharedMemConfig
    cuFuncSetSharedSize cuGetExportTable cuGetProcAddress_v2 cuGraphAddBatchMemOpNode
    cuGraphAddChildGraphNode cuGraphAddDependencies_v2 cuGraphAddEmptyNode
    cuGraphAddEventRecordNode cuGraphAddEventWaitNode cuGraphAddExternalSemaphoresSignalNode
    cuGraphAddExternalSemaphoresWaitNode cuGraphAddHostNode cuGraphAddKernelNode_v2
    cuGraphAddMemAllocNode cuGraphAddMemFreeNode cuGraphAddMemcpyNode cuGraphAddMemsetNode
    cuGraphAddNode_v2 cuGraphBatchMemOpNodeGetParams cuGraphBatchMemOpNodeSetParams
    cuGraphChildGraphNodeGetGraph cuGraphClone cuGraphConditionalHandleCreate cuGraphCreate
    cuGraphDebugDotPrint cuGraphDestroy cuGraphDestroyNode cuGraphEventRecordNodeGetEvent
    cuGraphEventRecordNodeSetEvent cuGraphEventWaitNodeGetEvent cuGraphEventWaitNodeSetEvent
    cuGraphExecBatchMemOpNodeSetParams cuGraphExecChildGraphNodeSetParams cuGraphExecDestroy
    cuGraphExecEventRecordNodeSetEvent cuGraphExecEventWaitNodeSetEvent
    cuGraphExecExternalSemaphoresSignalNodeSetParams
    cuGraphExecExternalSemaphoresWaitNodeSetParams cuGraphExecGetFlags cuGraphExecGetId
    cuGraphExecHostNodeSetParams cuGraphExecKernelNodeSetParams_v2
    cuGraphExecMemcpyNodeSetParams cuGraphExecMemsetNodeSetParams cuGraphExecNodeSetParams
    cuGraphExecUpdate_v2 cuGraphExternalSemaphoresSignalNodeGetParams
    cuGraphExternalSemaphoresSignalNodeSetParams cuGraphExternalSemaphoresWaitNodeGetParams
    cuGraphExternalSemaphoresWaitNodeSetParams cuGraphGetEdges_v2 cuGraphGetId cuGraphGetNodes
    cuGraphGetRootNodes cuGraphHostNodeGetParams cuGraphHostNodeSetParams
    cuGraphInstantiateWithFlags cuGraphInstantiateWithParams cuGraphKernelNodeCopyAttributes
    cuGraphKernelNodeGetAttribute cuGraphKernelNodeGetParams_v2 cuGraphKernelNodeSetAttribute
    cuGraphKernelNodeSetParams_v2 cuGraphLaunch cuGraphMemAllocNodeGetParams
    cuGraphMemFreeNodeGetParams cuGraphMemcpyNodeGetParams cuGraphMemcpyNodeSetParams
    cuGraphMemsetNodeGetParams cuGraphMemsetNodeSetParams cuGraphNodeFindInClone
    cuGraphNodeGetContainingGraph cuGraphNodeGetDependencies_v2 cuGraphNodeGetDependentNodes_v2
    cuGraphNodeGetEnabled cuGraphNodeGetLocalId cuGraphNodeGetToolsId cuGraphNodeGetType
    cuGraphNodeSetEnabled cuGraphNodeSetParams cuGraphReleaseUserObject
    cuGraphRemoveDependencies_v2 cuGraphRetainUserObject cuGraphUpload cuGraphicsMapResources
    cuGraphicsResourceGetMappedMipmappedArray cuGraphicsResourceGetMappedPointer_v2
    cuGraphicsResourceSetMapFlags_v2 cuGraphicsSubResourceGetMappedArray
    cuGraphicsUnmapResources cuGraphicsUnregisterResource cuGreenCtxCreate cuGreenCtxDestroy
    cuGreenCtxGetDevResource cuGreenCtxGetId cuGreenCtxRecordEvent cuGreenCtxStreamCreate
    cuGreenCtxWaitEvent cuImportExternalMemory cuImportExternalSemaphore cuIpcCloseMemHandle
    cuIpcGetEventHandle cuIpcGetMemHandle cuIpcOpenEventHandle cuIpcOpenMemHandle_v2
    cuKernelGetAttribute cuKernelGetFunction cuKernelGetLibrary cuKernelGetName
    cuKernelGetParamInfo cuKernelSetAttribute cuKernelSetCacheConfig cuLaunch
    cuLaunchCooperativeKernel cuLaunchCooperativeKernelMultiDevice cuLaunchGrid
    cuLaunchGridAsync cuLaunchKernelEx cuLibraryEnumerateKernels cuLibraryGetGlobal
    cuLibraryGetKernel cuLibraryGetKernelCount cuLibraryGetManaged cuLibraryGetModule
    cuLibraryGetUnifiedFunction cuLibraryLoadData cuLibraryLoadFromFile cuLibraryUnload
    cuLinkAddData_v2 cuLinkAddFile_v2 cuLinkComplete cuLinkCreate_v2 cuLinkDestroy cuLogsCurrent
    cuLogsDumpToFile cuLogsDumpToMemory cuLogsRegisterCallback cuLogsUnregisterCallback
    cuMemAdvise_v2 cuMemAllocFromPoolAsync cuMemAllocHost_v2 cuMemAllocPitch_v2
    cuMemBatchDecompressAsync cuMemDiscardAndPrefetchBatchAsync cuMemDiscardBatchAsync
    cuMemGetAccess cuMemGetDefaultMemPool cuMemGetInfo_v2
    cuMemGetMemPool cuMemHostGetDevicePointer_v2 cuMemHostGetFlags cuMemMapArrayAsync
    cuMemPoolCreate cuMemPoolDestroy cuMemPoolExportPointer cuMemPoolExportToShareableHandle
    cuMemPoolGetAccess cuMemPoolGetAttribute cuMemPoolImportFromShareableHandle
    cuMemPoolImportPointer cuMemPoolSetAccess cuMemPoolSetAttribute cuMemPoolTrimTo
    cuMemPrefetchAsync_v2 cuMemPrefetchBatchAsync cuMemRangeGetAttribute cuMemRangeGetAttributes
    cuMemSetMemPool cuMemcpy cuMemcpy2DAsync_v2 cuMemcpy2DUnaligned_v2 cuMemcpy2D_v2
    cuMemcpy3DAsync_v2 cuMemcpy3DBatchAsync_v2 cuMemcpy3DPeer cuMemcpy3DPeerAsync cuMemcpy3D_v2
    cuMemcpyAsync cuMemcpyAtoA_v2 cuMemcpyAtoD_v2 cuMemcpyAtoHAsync_v2 cuMemcpyAtoH_v2
    cuMemcpyBatchAsync_v2 cuMemcpyDtoA_v2 cuMemcpyDtoD_v2 cuMemcpyHtoAAsync_v2 cuMemcpyHtoA_v2
    cuMemcpyPeer cuMemsetD16Async cuMemsetD16_v2 cuMemsetD2D16Async cuMemsetD2D16_v2
    cuMemsetD2D32Async cuMemsetD2D32_v2 cuMemsetD2D8Async cuMemsetD2D8_v2 cuMemsetD32Async
    cuMemsetD32_v2 cuMemsetD8_v2 cuMipmappedArrayCreate cuMipmappedArrayDestroy
    cuMipmappedArrayGetLevel cuMipmappedArrayGetMemoryRequirements
    cuMipmappedArrayGetSparseProperties cuModuleEnumerateFunctions cuModuleGetFunctionCount
    cuModuleGetGlobal_v2 cuModuleGetLoadingMode cuModuleGetSurfRef cuModuleGetTexRef
    cuModuleLoad cuModuleLoadDataEx cuModuleLoadFatBinary cuMulticastAddDevice
    cuMulticastBindAddr cuMulticastBindAddr_v2 cuMulticastBindMem cuMulticastBindMem_v2
    cuMulticastCreate cuMulticastGetGranularity cuMulticastUnbind
    cuOccupancyAvailableDynamicSMemPerBlock cuOccupancyMaxActiveBlocksPerMultiprocessor
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cuOccupancyMaxActiveClusters
    cuOccupancyMaxPotentialBlockSize cuOccupancyMaxPotentialBlockSizeWithFlags
    cuOccupancyMaxPotentialClusterSize cuParamSetSize cuParamSetTexRef cuParamSetf cuParamSeti
    cuParamSetv cuPointerGetAttributes cuProfilerInitialize cuProfilerStart cuProfilerStop
    cuSignalExternalSemaphoresAsync cuStreamAddCallback cuStreamAttachMemAsync
    cuStreamBatchMemOp_v2 cuStreamBeginCaptureToGraph cuStreamBeginCapture_v2
    cuStreamCopyAttributes cuStreamCreateWithPriority cuStreamEndCapture cuStreamGetAttribute
    cuStreamGetCaptureInfo_v3 cuStreamGetCtx cuStreamGetCtx_v2 cuStreamGetDevResource
    cuStreamGetDevice cuStreamGetFlags cuStreamGetGreenCtx cuStreamGetId cuStreamGetPriority
    cuStreamIsCapturing cuStreamSetAttribute cuStreamUpdateCaptureDependencies_v2
    cuStreamWaitValue32_v2 cuStreamWaitValue64_v2 cuStreamWriteValue32_v2
    cuStreamWriteValue64_v2 cuSurfObjectCreate cuSurfObjectDestroy cuSurfObjectGetResourceDesc
    cuSurfRefGetArray cuSurfRefSetArray cuTensorMapEncodeIm2col cuTensorMapEncodeIm2colWide
    cuTensorMapEncodeTiled cuTensorMapReplaceAddress cuTexObjectCreate cuTexObjectDestroy
    cuTexObjectGetResourceDesc cuTexObjectGetResourceViewDesc cuTexObjectGetTextureDesc
    cuTexRefCreate cuTexRefDestroy cuTexRefGetAddressMode cuTexRefGetAddress_v2 cuTexRefGetArray
    cuTexRefGetBorderColor cuTexRefGetFilterMode cuTexRefGetFlags cuTexRefGetFormat
    cuTexRefGetMaxAnisotropy cuTexRefGetMipmapFilterMode cuTexRefGetMipmapLevelBias
    cuTexRefGetMipmapLevelClamp cuTexRefGetMipmappedArray cuTexRefSetAddress2D_v3
    cuTexRefSetAddressMode cuTexRefSetAddress_v2 cuTexRefSetArray cuTexRefSetBorderColor
    cuTexRefSetFilterMode cuTexRefSetFlags cuTexRefSetFormat cuTexRefSetMaxAnisotropy
    cuTexRefSetMipmapFilterMode cuTexRefSetMipmapLevelBias cuTexRefSetMipmapLevelClamp
    cuTexRefSetMipmappedArray cuThreadExchangeStreamCaptureMode cuUserObjectCreate
    cuUserObjectRelease cuUserObjectRetain cuWaitExternalSemaphoresAsync
}
