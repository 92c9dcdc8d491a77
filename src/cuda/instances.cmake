# The closed list of compiled variants: an axis is here only when it changes registers or shared
# memory. Writes a file for each and appends them to TILEWISE_CUDA_INSTANCES.
set(TILEWISE_CUDA_HEAD_DIMS 64 96 128 192 256)
set(TILEWISE_CUDA_INSTANCES)
foreach(_type fp16 bf16)
  string(SUBSTRING ${_type} 0 1 _first)
  string(TOUPPER ${_first} _first)
  string(SUBSTRING ${_type} 1 -1 _rest)
  foreach(_dim ${TILEWISE_CUDA_HEAD_DIMS})
    foreach(_variant Full Banded General)
      string(TOLOWER ${_variant} _name)
      foreach(_direction Forward Backward)
        string(TOLOWER ${_direction} _verb)
        set(_parameters "const cuda::ForwardParams&, cudaStream_t")
        if(_direction STREQUAL "Backward")
          set(_parameters "cuda::BackwardParams, cudaStream_t")
        endif()
        set(_file ${CMAKE_CURRENT_BINARY_DIR}/cuda/sm80_${_verb}_d${_dim}_${_name}_${_type}.cu)
        file(CONFIGURE OUTPUT ${_file} @ONLY CONTENT
"#include \"cuda/sm80/@_verb@_instance.cuh\"

using namespace tilewise;

template cudaError_t cuda::sm80::launch_@_verb@<DType::k@_first@@_rest@, @_dim@, cuda::Variant::k@_variant@>(
    @_parameters@);
")
        list(APPEND TILEWISE_CUDA_INSTANCES ${_file})
      endforeach()
    endforeach()
  endforeach()
endforeach()

# The sm_90 kernels, for that device alone.
set(TILEWISE_SM90_HEAD_DIMS 64 96 128 192 256)
set(TILEWISE_SM90_INSTANCES)
foreach(_dim ${TILEWISE_SM90_HEAD_DIMS})
  set(_tiles Full:128 Banded:128)
  if(_dim EQUAL 64)
    set(_tiles Full:192 Banded:128 Banded:192 General:128)
  elseif(_dim EQUAL 128)
    list(APPEND _tiles General:128)
  endif()
  foreach(_tile ${_tiles})
    string(REPLACE ":" ";" _tile ${_tile})
    list(GET _tile 0 _variant)
    list(GET _tile 1 _rows)
    foreach(_type Fp16 Bf16)
      string(TOLOWER ${_variant}_${_rows}_${_type} _name)
      set(_file ${CMAKE_CURRENT_BINARY_DIR}/cuda/sm90_forward_d${_dim}_${_name}.cu)
      file(CONFIGURE OUTPUT ${_file} @ONLY CONTENT
"#include \"cuda/sm90/forward_instance.cuh\"

using namespace tilewise;

template cudaError_t cuda::sm90::launch_forward<DType::k@_type@, @_dim@, cuda::Variant::k@_variant@, @_rows@>(
    const cuda::TileForwardParams&, int, cudaStream_t);
")
      list(APPEND TILEWISE_SM90_INSTANCES ${_file})
    endforeach()
  endforeach()
endforeach()
foreach(_dim 64 128)
  foreach(_variant Full Banded)
    foreach(_type Fp16 Bf16)
      string(TOLOWER ${_variant}_${_type} _name)
      set(_file ${CMAKE_CURRENT_BINARY_DIR}/cuda/sm90_backward_d${_dim}_${_name}.cu)
      file(CONFIGURE OUTPUT ${_file} @ONLY CONTENT
"#include \"cuda/sm90/backward_instance.cuh\"

using namespace tilewise;

template cudaError_t cuda::sm90::launch_backward<DType::k@_type@, @_dim@, cuda::Variant::k@_variant@>(
    const cuda::TileBackwardParams&, int, cudaStream_t);
")
      list(APPEND TILEWISE_SM90_INSTANCES ${_file})
    endforeach()
  endforeach()
endforeach()
