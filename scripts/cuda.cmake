# The CUDA backend. Its kernels (*.cu) are compiled by nvcc for THESPIS_CUDA_ARCHS, or, for tests on a machine without a GPU, by the
# C++ compiler against the emulator in tests/cuda_emu; its host code is C. cuda_kind is "nvcc", "emulator" or empty.
#
# nvcc is called by plain rules and not as a CMake language: everything is linked as C, with the static runtime and no C++ library.
set(cuda_kind "")
set(cuda_objects)
set(cuda_sources)

string(TOLOWER "${THESPIS_CUDA}" cuda_wanted)
if(NOT cuda_wanted MATCHES "^(auto|on|off)$")
  message(FATAL_ERROR "THESPIS_CUDA is '${THESPIS_CUDA}', must be auto, on or off")
endif()
if(THESPIS_CUDA_EMU)
  set(cuda_kind emulator)
elseif(NOT cuda_wanted STREQUAL "off")
  set(cuda_hints)
  if(cuda_wanted STREQUAL "on")
    set(cuda_hints /usr/local/cuda/bin)
  endif()
  if(DEFINED ENV{CUDACXX})
    set(THESPIS_NVCC $ENV{CUDACXX} CACHE FILEPATH "nvcc")
  endif()
  find_program(THESPIS_NVCC nvcc HINTS ${cuda_hints})
  set(cuda_archs ${THESPIS_CUDA_ARCHS})
  if(cuda_wanted STREQUAL "auto" AND THESPIS_NVCC)
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader OUTPUT_VARIABLE cuda_here ERROR_QUIET
                    RESULT_VARIABLE cuda_code)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]+" cuda_here "${cuda_here}")
    string(REPLACE "." "" cuda_here "${cuda_here}")
    list(REMOVE_DUPLICATES cuda_here)
    if(NOT cuda_archs)
      set(cuda_archs ${cuda_here})
    endif()
  elseif(NOT cuda_archs)
    set(cuda_archs 80 86 89 90 100 120 121)
  endif()
  if(THESPIS_NVCC AND cuda_archs)
    set(cuda_kind nvcc)
  elseif(cuda_wanted STREQUAL "on")
    message(FATAL_ERROR "THESPIS_CUDA is on, but there is no nvcc: put it in PATH or name it with CUDACXX")
  endif()
endif()

set(cuda_launcher ${CMAKE_CUDA_COMPILER_LAUNCHER})
if(cuda_kind STREQUAL "nvcc")
  get_filename_component(cuda_bin ${THESPIS_NVCC} REALPATH)
  get_filename_component(cuda_bin ${cuda_bin} DIRECTORY)
  find_path(THESPIS_CUDA_INCLUDE cuda_runtime_api.h
            HINTS ${cuda_bin}/../include ${cuda_bin}/../targets/${CMAKE_SYSTEM_PROCESSOR}-linux/include NO_DEFAULT_PATH)
  find_library(THESPIS_CUDART libcudart_static.a
               HINTS ${cuda_bin}/../lib64 ${cuda_bin}/../lib ${cuda_bin}/../targets/${CMAKE_SYSTEM_PROCESSOR}-linux/lib)
  if(NOT THESPIS_CUDA_INCLUDE OR NOT THESPIS_CUDART)
    message(FATAL_ERROR "${THESPIS_NVCC} is there, but cuda_runtime_api.h or libcudart_static.a is not beside it")
  endif()
  set(cuda_host -fPIC -fvisibility=hidden -fno-exceptions -fno-rtti -fno-threadsafe-statics -Wall -Wextra)
  if(THESPIS_WERROR)
    list(APPEND cuda_host -Werror)
  endif()
  list(JOIN cuda_host "," cuda_host)
  set(cuda_command ${cuda_launcher} ${THESPIS_NVCC} -std=c++17 -O3 -Xptxas -v -Xcompiler ${cuda_host})
  foreach(arch ${cuda_archs})
    list(APPEND cuda_command -gencode arch=compute_${arch},code=sm_${arch})
  endforeach()
elseif(cuda_kind STREQUAL "emulator")
  add_link_options(-fsanitize=alignment)
  if(CMAKE_C_COMPILER_ID MATCHES "Clang")
    find_program(THESPIS_CXX NAMES clang++ REQUIRED)
  else()
    find_program(THESPIS_CXX NAMES g++ c++ REQUIRED)
  endif()
  set(cuda_command ${cuda_launcher} ${THESPIS_CXX} -x c++ -std=c++17 -O2 -g -fPIC -fvisibility=hidden -fno-exceptions -fno-rtti
      -fno-threadsafe-statics -ffp-contract=off -fno-math-errno -Wall -Wextra -Wno-unknown-pragmas -DTH_CUDA_EMU=1
      -fsanitize=alignment -fno-sanitize-recover=alignment) # a GPU refuses what x86 reads slowly
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|amd64|AMD64")
    list(APPEND cuda_command -mavx2 -mfma) # fmaf without the instruction is a slow call
  endif()
  if(THESPIS_WERROR)
    list(APPEND cuda_command -Werror)
  endif()
  if(THESPIS_SANITIZE)
    list(APPEND cuda_command -fsanitize=${THESPIS_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  endif()
endif()

# Objects of kernel files, in *out. A file that promises bits may not have its operations contracted.
function(cuda_kernels out)
  set(objects)
  foreach(source ${ARGN})
    get_filename_component(name ${source} NAME_WE)
    set(object ${CMAKE_BINARY_DIR}/kernels/${name}.o)
    set(options)
    set(logged)
    if(cuda_kind STREQUAL "nvcc") # scripts/check-launch-limits reads the log
      set(logged ${CMAKE_SOURCE_DIR}/scripts/nvcc-logged ${object}.usage)
    endif()
    if(cuda_kind STREQUAL "nvcc" AND name MATCHES "^(draw)$")
      set(options -fmad=false)
    endif()
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/kernels
      COMMAND ${logged} ${cuda_command} ${options} -I${CMAKE_SOURCE_DIR}/include -I${CMAKE_SOURCE_DIR}/src -I${CMAKE_SOURCE_DIR}/tests -MD -MF
              ${object}.d -c ${source} -o ${object}
      DEPENDS ${source}
      DEPFILE ${object}.d
      COMMENT "Kernels ${name}.cu"
      VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  set(${out} ${objects} PARENT_SCOPE)
endfunction()

# What a target that includes backend/cuda/runtime.h needs.
function(cuda_settings target)
  if(cuda_kind)
    target_compile_definitions(${target} PUBLIC TH_HAVE_CUDA=1)
  endif()
  if(cuda_kind STREQUAL "nvcc")
    target_include_directories(${target} SYSTEM PUBLIC ${THESPIS_CUDA_INCLUDE})
    target_link_libraries(${target} PUBLIC ${THESPIS_CUDART} ${CMAKE_DL_LIBS} rt Threads::Threads)
  elseif(cuda_kind STREQUAL "emulator")
    target_compile_definitions(${target} PUBLIC TH_CUDA_EMU=1)
    target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR}/tests)
    target_link_libraries(${target} PUBLIC Threads::Threads m)
  endif()
endfunction()

if(cuda_kind)
  file(GLOB cuda_kernel_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cuda/*.cu)
  file(GLOB cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cuda/*.c)
  if(cuda_kind STREQUAL "emulator")
    file(GLOB emulator_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/cuda_emu/*.c)
    list(APPEND cuda_sources ${emulator_sources})
  endif()
  cuda_kernels(cuda_objects ${cuda_kernel_sources})
  message(STATUS "CUDA backend: ${cuda_kind} ${cuda_archs}")
endif()
