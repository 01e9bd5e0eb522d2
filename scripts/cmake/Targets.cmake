# One static library per folder, one test executable per folder of tests/.
find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # -fpch-preprocess and these sloppiness flags are what ccache needs with precompiled headers.
  set(_launcher ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${_launcher} ${CCACHE})
  # Else ccache compares what it preprocesses itself, without what nvcc defines for an architecture: a
  # kernel whose body is for one of them alone would never seem to change.
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${_launcher} CCACHE_DEPEND=1 ${CCACHE})
endif()
find_program(MOLD mold)
if(MOLD)
  include(CheckLinkerFlag)
  check_linker_flag(CXX -fuse-ld=mold DIPTYCH_LINKS_WITH_MOLD)   # g++ before 12.1 does not know it
  if(DIPTYCH_LINKS_WITH_MOLD)
    add_link_options(-fuse-ld=mold)
  endif()
endif()

add_library(diptych_options INTERFACE)
target_include_directories(diptych_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(diptych_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wconversion;-Werror;-fpch-preprocess>
  $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Wall,-Wextra>)
target_compile_definitions(diptych_options INTERFACE
  DIPTYCH_VERSION="${PROJECT_VERSION}" DIPTYCH_HAVE_CUDA=${DIPTYCH_HAVE_CUDA}
  DIPTYCH_HAVE_CUDNN=${DIPTYCH_HAVE_CUDNN} DIPTYCH_HAVE_UTF8PROC=${DIPTYCH_HAVE_UTF8PROC})
if(DIPTYCH_SANITIZE)
  target_compile_options(diptych_options INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=undefined)
  target_link_options(diptych_options INTERFACE -fsanitize=address,undefined)
endif()

# For code whose time goes into what it calls: compiled so in two thirds of the time (g++ 12). A
# precompiled header is for one level alone. What g++ takes for uninitialised depends on the level; that
# warning is left to the folders at the usual one.
set(DIPTYCH_LIGHT $<$<COMPILE_LANGUAGE:CXX>:-O1> $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>)

# Compiles the sources of one folder together, up to eight at a time: g++ 12 takes two to three seconds a
# compilation for templates that ATen's header leaves to its end, precompiled or not. Local names of a
# folder must differ therefore, but for those of the sources named behind the target.
function(diptych_unite target)
  if(NOT DIPTYCH_UNITY)
    return()
  endif()
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "^[a-z0-9_/]+\\.cpp$")
  foreach(source ${sources})
    cmake_path(GET source PARENT_PATH folder)
    string(MAKE_C_IDENTIFIER "in_${folder}" folder)
    list(APPEND of_${folder} ${source})
    list(LENGTH of_${folder} count)
    math(EXPR group "(${count} - 1) / 8")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder}_${group})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

# diptych_library(NAME SOURCES a.cpp ... LINK dep ... [NO_TORCH] [LIGHT] [ALONE a.cpp ...])
# The target is diptych_NAME. With torch it uses the shared precompiled ATen header. ALONE: sources that
# are not compiled together with others (diptych_unite).
function(diptych_library name)
  cmake_parse_arguments(ARG "NO_TORCH;LIGHT" "" "SOURCES;LINK;ALONE" ${ARGN})
  set(target diptych_${name})
  add_library(${target} STATIC ${ARG_SOURCES})
  diptych_unite(${target} ${ARG_ALONE})
  target_link_libraries(${target} PUBLIC diptych_options ${ARG_LINK})
  set(pch diptych_pch)
  if(ARG_LIGHT)
    target_compile_options(${target} PRIVATE ${DIPTYCH_LIGHT})
    set(pch diptych_light_pch)
  endif()
  if(NOT ARG_NO_TORCH)
    target_link_libraries(${target} PUBLIC ${DIPTYCH_TORCH})
    target_precompile_headers(${target} REUSE_FROM ${pch})
  endif()
endfunction()

# diptych_test(NAME SOURCES a_test.cpp ... LINK dep ... [LABELS gpu] [NEEDS what ...] [TWO_THREADS] [ALONE a_test.cpp ...])
# A doctest executable NAME_tests, one ctest entry of that name. Labelled gpu, it exits with 77
# ("skipped") where torch sees no GPU. The test suite "needs WHAT" is an entry NAME_needs_WHAT, which
# is skipped where the build or the machine lacks it (tests/support/skip.h). TWO_THREADS: of what is
# parallel itself; the others run side by side, with a thread each.
function(diptych_test name)
  cmake_parse_arguments(ARG "TWO_THREADS" "" "SOURCES;LINK;LABELS;NEEDS;ALONE" ${ARGN})
  set(target ${name}_tests)
  set(threads 1)
  if(ARG_TWO_THREADS)
    set(threads 2)
  endif()
  set(main main.cpp)
  if("gpu" IN_LIST ARG_LABELS)
    set(main gpu_main.cpp)
  endif()
  add_executable(${target} ${CMAKE_SOURCE_DIR}/tests/support/${main} ${ARG_SOURCES})
  diptych_unite(${target} ${ARG_ALONE})
  target_link_libraries(${target} PRIVATE diptych_options doctest::doctest ${ARG_LINK} diptych_base ${DIPTYCH_TORCH})
  target_compile_options(${target} PRIVATE ${DIPTYCH_LIGHT})
  target_precompile_headers(${target} REUSE_FROM diptych_light_pch)
  target_compile_definitions(${target} PRIVATE DIPTYCH_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  set(entries ${name})
  add_test(NAME ${name} COMMAND ${target} "--test-suite-exclude=needs *")
  foreach(need ${ARG_NEEDS})
    list(APPEND entries ${name}_needs_${need})
    add_test(NAME ${name}_needs_${need} COMMAND ${target} "--test-suite=needs ${need}")
  endforeach()
  set_tests_properties(${entries} PROPERTIES SKIP_RETURN_CODE 77 LABELS "${ARG_LABELS}" TIMEOUT 600
    FAIL_REGULAR_EXPRESSION "test cases: +0 "   # a run of no case shows nothing
    # libgomp's threads spin, which is a loss beside another test.
    ENVIRONMENT "OMP_NUM_THREADS=${threads};GOMP_SPINCOUNT=1000;XDG_CACHE_HOME=${CMAKE_BINARY_DIR}/cache"
    PROCESSORS ${threads})
  if("gpu" IN_LIST ARG_LABELS)
    set_tests_properties(${entries} PROPERTIES RESOURCE_LOCK gpu)   # its memory is for one test at a time
  endif()
endfunction()
