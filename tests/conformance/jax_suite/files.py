"""Which files of JAX's suite make up the published figure, and which need another accelerator or other services."""

from pathlib import Path

from . import source

# Issue by issue what a user of one device meets; the figure of docs/conformance.md is over these.
MAIN = """
lax_test lax_numpy_test lax_numpy_operators_test lax_numpy_indexing_test lax_numpy_reducers_test lax_numpy_ufuncs_test
lax_numpy_einsum_test lax_control_flow_test lax_autodiff_test lax_vmap_test lax_vmap_op_test lax_scipy_test
lax_scipy_special_functions_test scipy_fft_test scipy_interpolate_test scipy_ndimage_test scipy_optimize_test
scipy_signal_test scipy_spatial_test scipy_stats_test random_test random_lax_test nn_test fft_test linalg_test api_test
array_test dtypes_test image_test ode_test custom_linear_solve_test export_test aot_test stax_test optimizers_test
python_callback_test debugging_primitives_test jax_jit_test pjit_test shard_map_test pmap_test
array_interoperability_test
""".split()

# Files that ask for hardware or services which no plugin of ours can give (TPU, CUDA, Mosaic, several hosts), or that
# test tools of JAX's repository.
ELSEWHERE = """
distributed_initialize_test distributed_test documentation_coverage_test gpu_memory_flags_test local_wheel_smoke_test
magma_linalg_test mock_gpu_test mock_gpu_topology_test mosaic_test multiprocess_gpu_test package_structure_test
cudnn_fusion_test fused_attention_stablehlo_test pgle_test ragged_collective_test colocated_python_test
scaled_matmul_stablehlo_test hardware_utils_test pytorch_interoperability_test
""".split()

# Ours, run by the same runner; it needs no copy of JAX's repository.
PRIMITIVES = Path(__file__).with_name("primitives_test.py")


def paths(tests: str | None, named: list[str], everything: bool = False) -> list[Path]:
    """The files to run: those named, or all that a device of ours can run, or those of the published figure."""
    folder = source.find(tests)
    if not named:
        every = [file.stem for file in sorted(folder.glob("*_test.py")) if file.stem not in ELSEWHERE]
        named = every if everything else MAIN
    found = [folder / f"{name}.py" for name in named]
    absent = [path.name for path in found if not path.exists()]
    if absent:
        raise ValueError(f"not in {folder}: {', '.join(absent)}")
    return found
