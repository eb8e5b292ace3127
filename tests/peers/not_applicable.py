"""The tests of numba-cuda that say nothing about what a kernel computes, and those that simt fails
on purpose, with the reason.

Of the former, only what `cuda_on_cpu` cannot find out while the test runs is listed here, or finds
out after hundreds of compilations.
"""

BY_REFERENCE = (
    "captures an array of a GPU by reference; here it is a NumPy array, which "
    "Numba takes as a constant"
)
CACHE_FILES = "looks into the files of numba-cuda's own disk cache"
CPU_CAN = "expects an error for what a GPU cannot do, and a CPU can"
DEVICE_ARRAYS = "tests device arrays themselves, which are NumPy arrays here"
DRIVER = "uses the CUDA driver"
DUMPS = "inspects numba-cuda's debugging output"
HARDWARE_OPTION = "is about a compiler option for GPUs"
LAUNCH_CONFIG = "uses the stages of numba-cuda's own compiler"
WARNINGS = "is about warnings of numba-cuda's own compiler"
WORDING = "expects the words of an error of numba-cuda's own compiler"

FILES: dict[str, str] = {
    "test_caching": CACHE_FILES,
    "test_cuda_array_interface": DEVICE_ARRAYS,
    "test_debug": DUMPS,
    "test_device_array_capture": BY_REFERENCE,
    "test_ipc": DRIVER,
    "test_launch_config_sensitive": LAUNCH_CONFIG,
    "test_multigpu": DRIVER,
    "test_warning": WARNINGS,
}

# By class or by class and method.
TESTS: dict[str, str] = {
    "test_alignment.TestAlignment.test_record_alignment_error": CPU_CAN,
    "test_array.TestCudaArray.test_array_like_2d_view_transpose_device": DEVICE_ARRAYS,
    "test_array.TestCudaArray.test_gpu_array_interleaved": DEVICE_ARRAYS,
    "test_array_alignment.TestArrayAddressAlignment": (
        "inspects the LLVM code for NVVM (inspect_llvm)"
    ),
    "test_array_alignment.TestArrayAddressAlignment.test_invalid_aligments": (
        "is about the alignment= of arrays in GPU memory"
    ),
    "test_debuginfo.TestCudaDebugInfo.test_missing_source": WARNINGS,
    "test_device_func.TestDeviceFunc.test_cpu_dispatcher_invalid": CPU_CAN,
    "test_dispatcher.TestLaunchBounds": HARDWARE_OPTION,
    "test_dispatcher.TestSharedMemoryCarveout": HARDWARE_OPTION,
    "test_errors.TestJitErrors": WORDING,
    "test_gufunc.TestCUDAGufunc.test_inefficient_launch_configuration": WARNINGS,
    "test_gufunc.TestCUDAGufunc.test_not_supported_call_from_jit": WORDING,
    "test_gufunc_scalar.TestGUFuncScalar.test_gufunc_scalar_cast": DEVICE_ARRAYS,
    "test_localmem.TestCudaLocalMem.test_struct_model_type_arr": (
        "writes outside of its arrays, which no GPU has noticed"
    ),
    "test_make_function_to_jit_function.TestMakeFunctionToJITFunction.test_multiply_defined_freevar": CPU_CAN,  # noqa: E501
    "test_make_function_to_jit_function.TestMakeFunctionToJITFunction.test_non_const_in_escapee": CPU_CAN,  # noqa: E501
    "test_vectorize.TestCUDAVectorize.test_no_transfer_for_device_data": DRIVER,
    "test_globals.TestGlobals.test_ex_globals_device_array_capture": BY_REFERENCE,
    "test_intrinsics.TestCudaIntrinsic.test_nonliteral_grid_error": WORDING,
    "test_intrinsics.TestCudaIntrinsic.test_nonliteral_gridsize_error": WORDING,
    "test_lineinfo.TestCudaLineInfo.test_debug_and_lineinfo_warning": WARNINGS,
    "test_localmem.TestCudaLocalMem.test_invalid_string_dtype": WORDING,
    "test_print.TestPrint.test_bfloat16": "expects the digits of CUDA's printf",
    "test_print.TestPrint.test_too_many_args": (
        "is about the number of arguments that CUDA's printf takes"
    ),
    "test_sm.TestSharedMemory.test_invalid_array_type": WORDING,
    "test_sm_creation.TestSharedMemoryCreation.test_global_build_list": WORDING,
    "test_sm_creation.TestSharedMemoryCreation.test_invalid_1": WORDING,
    "test_sm_creation.TestSharedMemoryCreation.test_invalid_2": WORDING,
    "test_sm_creation.TestSharedMemoryCreation.test_invalid_3": WORDING,
    "test_sm_creation.TestSharedMemoryCreation.test_invalid_4": WORDING,
    "test_sm_creation.TestSharedMemoryCreation.test_invalid_string_dtype": WORDING,
    "test_ssa.TestSSA.test_undefined_var": WARNINGS,
    "test_transpose.TestTranspose.test_transpose_view": DEVICE_ARRAYS,
    "test_warp_ops.TestCudaWarpOperations.test_vote_sync_type_validation": WORDING,
}

# Tests that fail since simt differs from numba-cuda on purpose, with the difference.
FIRST_LAUNCH = (
    "expects an error of types at the decorator; simt compiles at the first "
    "launch, which raises that error"
)
DIFFERENCES: dict[str, str] = {
    "test_exception.TestException.test_exception": (
        "expects an exception to be lost without debug=True; simt raises it"
    ),
    "test_recursion.TestSelfRecursion.test_growing_return_tuple": FIRST_LAUNCH,
    "test_recursion.TestSelfRecursion.test_runaway": FIRST_LAUNCH,
}


def difference(file: str, test: str) -> str | None:
    """Why a test fails that is expected to; None if it should not."""
    return DIFFERENCES.get(f"{file.rpartition('/')[2]}.{test}")


def reason_to_leave_out(file: str, test: str) -> str | None:
    """Why a test is not applicable; None if it is to be run."""
    name = file.rpartition("/")[2]
    for key in (f"{name}.{test}", f"{name}.{test.partition('.')[0]}"):
        if key in TESTS:
            return TESTS[key]
    return FILES.get(name)
