# Finds libtorch inside a Python torch wheel and defines
#   torch::cpu   headers, libc10, libtorch_cpu
#   torch::cuda  the same and libc10_cuda, libtorch_cuda (only where the wheel has them)
# Not torch's own find_package(Torch): that one demands a CUDA toolkit, rewrites the CUDA flags
# and switches CUDA architectures off.
#
# LIBTORCH_ROOT is the wheel's "torch" folder. Looked for in this order: the variable, the
# environment variable of that name, the repository's .venv, the python3 on PATH.
if(NOT LIBTORCH_ROOT AND DEFINED ENV{LIBTORCH_ROOT})
  set(LIBTORCH_ROOT $ENV{LIBTORCH_ROOT})
endif()
if(NOT LIBTORCH_ROOT)
  foreach(python ${CMAKE_SOURCE_DIR}/.venv/bin/python3 python3)
    execute_process(
      COMMAND ${python} -c "import importlib.util as u, os; print(os.path.dirname(u.find_spec('torch').origin))"
      OUTPUT_VARIABLE _root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE _failed)
    if(NOT _failed)
      set(LIBTORCH_ROOT ${_root})
      break()
    endif()
  endforeach()
endif()
set(LIBTORCH_ROOT "${LIBTORCH_ROOT}" CACHE PATH "The torch folder of an installed torch wheel")

find_path(Libtorch_INCLUDE_DIR ATen/ATen.h HINTS ${LIBTORCH_ROOT}/include NO_DEFAULT_PATH)
find_library(Libtorch_CPU_LIBRARY torch_cpu HINTS ${LIBTORCH_ROOT}/lib NO_DEFAULT_PATH)
find_library(Libtorch_CUDA_LIBRARY torch_cuda HINTS ${LIBTORCH_ROOT}/lib NO_DEFAULT_PATH)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Libtorch REQUIRED_VARS Libtorch_INCLUDE_DIR Libtorch_CPU_LIBRARY
  REASON_FAILURE_MESSAGE "install the PyPI wheel torch==2.11.0 (scripts/quickstart does) or set LIBTORCH_ROOT")

# The wheel's CUDA libraries lie in the nvidia packages beside it.
get_filename_component(Libtorch_SITE_PACKAGES ${LIBTORCH_ROOT} DIRECTORY)
file(GLOB Libtorch_NVIDIA_LIBRARY_DIRS ${Libtorch_SITE_PACKAGES}/nvidia/*/lib)

if(NOT TARGET torch::cpu)
  set(_lib ${LIBTORCH_ROOT}/lib)
  add_library(torch::cpu INTERFACE IMPORTED)
  target_include_directories(torch::cpu SYSTEM INTERFACE ${Libtorch_INCLUDE_DIR}
                             ${Libtorch_INCLUDE_DIR}/torch/csrc/api/include)
  target_compile_definitions(torch::cpu INTERFACE FMT_HEADER_ONLY=1)
  target_link_libraries(torch::cpu INTERFACE ${_lib}/libc10.so ${_lib}/libtorch_cpu.so)
  target_link_options(torch::cpu INTERFACE -Wl,-rpath,${_lib})
  # libtorch_cpu itself needs libcudart and libcupti; the linker must find them, we do not link them.
  foreach(dir ${Libtorch_NVIDIA_LIBRARY_DIRS})
    target_link_options(torch::cpu INTERFACE -Wl,-rpath-link,${dir} -Wl,-rpath,${dir})
  endforeach()
  target_link_options(torch::cpu INTERFACE -Wl,-rpath-link,${_lib})
  if(Libtorch_CUDA_LIBRARY)
    add_library(torch::cuda INTERFACE IMPORTED)
    # Nothing names a symbol of libtorch_cuda, so a linker may drop it and CUDA with it.
    target_link_libraries(torch::cuda INTERFACE torch::cpu ${_lib}/libc10_cuda.so
                          -Wl,--no-as-needed ${_lib}/libtorch_cuda.so ${_lib}/libtorch.so -Wl,--as-needed)
  endif()
endif()
