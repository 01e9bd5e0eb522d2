# Finds libtorch inside a Python torch wheel and defines
#   torch::headers  nothing to link: for code that uses a header of the wheel (fmt) alone, with lib/base/fmt.cpp
#   torch::cpu   headers, libc10, libtorch_cpu
#   torch::cuda  the same and libc10_cuda, libtorch_cuda (only where they and all they need are there)
# Not torch's own find_package(Torch): that one demands a CUDA toolkit, rewrites the CUDA flags
# and switches CUDA architectures off.
#
# LIBTORCH_ROOT is the wheel's "torch" folder. Looked for in this order: the CMake variable, the
# environment variable of that name, the repository's .venv, the python3 on PATH.
if(NOT EXISTS "${LIBTORCH_ROOT}")   # not given, or remembered from an environment that has moved
  set(_root "$ENV{LIBTORCH_ROOT}")
  foreach(python ${CMAKE_SOURCE_DIR}/.venv/bin/python3 python3)
    if(NOT EXISTS "${_root}")
      execute_process(
        COMMAND ${python} -c "import importlib.util as u, os; print(os.path.dirname(u.find_spec('torch').origin))"
        OUTPUT_VARIABLE _root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    endif()
  endforeach()
  set(LIBTORCH_ROOT "${_root}" CACHE PATH "The torch folder of an installed torch wheel" FORCE)
endif()

# Plain paths, no cached find_library results: they would outlive a change of LIBTORCH_ROOT.
set(_lib ${LIBTORCH_ROOT}/lib)
set(Libtorch_INCLUDE_DIR ${LIBTORCH_ROOT}/include)
if(NOT EXISTS ${Libtorch_INCLUDE_DIR}/ATen/ATen.h OR NOT EXISTS ${_lib}/libtorch_cpu.so)
  unset(Libtorch_INCLUDE_DIR)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Libtorch REQUIRED_VARS Libtorch_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "install the PyPI wheel torch==2.11.0 (scripts/quickstart does) or set LIBTORCH_ROOT")

# The wheel's CUDA libraries lie in the nvidia packages beside it.
get_filename_component(Libtorch_SITE_PACKAGES ${LIBTORCH_ROOT} DIRECTORY)
file(GLOB Libtorch_NVIDIA_LIBRARY_DIRS ${Libtorch_SITE_PACKAGES}/nvidia/*/lib)
set(Libtorch_LIBRARY_DIRS ${_lib} ${Libtorch_NVIDIA_LIBRARY_DIRS})   # for run paths

# A wheel installed without its CUDA packages holds a libtorch_cuda that nothing can load.
set(Libtorch_CUDA FALSE)
if(EXISTS ${_lib}/libtorch_cuda.so)
  find_program(Libtorch_LDD ldd)
  mark_as_advanced(Libtorch_LDD)
  execute_process(COMMAND ${Libtorch_LDD} ${_lib}/libtorch_cuda.so OUTPUT_VARIABLE _needs ERROR_QUIET)
  if(NOT _needs MATCHES "not found")
    set(Libtorch_CUDA TRUE)
  endif()
endif()

if(NOT TARGET torch::cpu)
  add_library(torch::headers INTERFACE IMPORTED)
  target_include_directories(torch::headers SYSTEM INTERFACE ${Libtorch_INCLUDE_DIR}
                             ${Libtorch_INCLUDE_DIR}/torch/csrc/api/include)
  add_library(torch::cpu INTERFACE IMPORTED)
  target_link_libraries(torch::cpu INTERFACE torch::headers ${_lib}/libc10.so ${_lib}/libtorch_cpu.so)
  # libtorch_cpu itself needs libcudart and libcupti; the linker must find them, we do not link them.
  foreach(dir ${_lib} ${Libtorch_NVIDIA_LIBRARY_DIRS})
    target_link_options(torch::cpu INTERFACE -Wl,-rpath-link,${dir})
  endforeach()
  if(Libtorch_CUDA)
    add_library(torch::cuda INTERFACE IMPORTED)
    # Nothing names a symbol of libtorch_cuda, so a linker may drop it and CUDA with it.
    target_link_libraries(torch::cuda INTERFACE torch::cpu ${_lib}/libc10_cuda.so
                          -Wl,--no-as-needed ${_lib}/libtorch_cuda.so ${_lib}/libtorch.so -Wl,--as-needed)
  endif()
endif()
