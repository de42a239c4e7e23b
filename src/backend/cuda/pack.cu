// pack.cu - packing of weights while they are loaded. See pack.h and weights.h.
#include "backend/cuda/pack.h"

#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

namespace
{

// A block: four neighbouring tiles of one row of tiles; a thread: the 16 bytes of one lane in one of the two steps.
__global__ void pack_rows(const unsigned char *from, unsigned char *tiles, size_t row_bytes, int first_row, int rows, int pad_to,
                          int first_tile, int kind)
{
    th_dependency_wait();
    const int lane = threadIdx.x % 32, step = threadIdx.x / 32 % 2;
    const size_t tile_columns = row_bytes / 64, column = blockIdx.x * 4 + threadIdx.x / 64;
    if (column >= tile_columns) return;
    const int tile = first_tile + static_cast<int>(blockIdx.y);
    const size_t at = column * 64 + 16 * (lane % 4) + 8 * step;
    uint32_t *to = reinterpret_cast<uint32_t *>(tiles + (static_cast<size_t>(tile) * tile_columns + column) * 1024 + step * 512 +
                                                lane * 16);
    for (int half = 0; half < 2; half++) {
        if (kind != TH_CUDA_ROWS_ALL && half != kind - TH_CUDA_ROWS_FIRST) continue;
        const int part_row = kind == TH_CUDA_ROWS_ALL ? tile * 16 + half * 8 + lane / 4 : tile * 8 + lane / 4;
        const int row = part_row - first_row;
        if (row < 0 || (row >= rows && part_row >= pad_to)) continue;
        uint2 value = make_uint2(0, 0);
        if (row < rows) value = *reinterpret_cast<const uint2 *>(from + static_cast<size_t>(row) * row_bytes + at);
        to[half] = value.x;
        to[2 + half] = value.y;
    }
}

} // namespace

cudaError_t th_cuda_pack(const struct th_cuda_launch *launch, const void *from, void *tiles, size_t row_bytes, int first_row,
                         int rows, int pad_to, enum th_cuda_rows kind)
{
    const int each = kind == TH_CUDA_ROWS_ALL ? 16 : 8;
    const int end = first_row + rows > pad_to ? first_row + rows : pad_to;
    const int first_tile = first_row / each, tile_rows = (end + each - 1) / each - first_tile;
    if (rows < 1 || row_bytes % 64 != 0 || tile_rows > 65535) return cudaErrorInvalidValue;
    const dim3 grid(static_cast<unsigned>((row_bytes / 64 + 3) / 4), static_cast<unsigned>(tile_rows));
    return th_launch(launch, pack_rows, grid, dim3(256), 0, static_cast<const unsigned char *>(from),
                     static_cast<unsigned char *>(tiles), row_bytes, first_row, rows, pad_to, first_tile, static_cast<int>(kind));
}

TH_CUDA_KERNELS(pack) = {TH_CUDA_KERNEL(256, 0, pack_rows), TH_CUDA_KERNELS_END};
