/* lm_product.c - weights times columns. A tile of rows and columns keeps all its running sums in registers; the tile's size decides
 * only how often weights and inputs are read, never a sum. */
#include "backend/cpu/kernels/lm_parts.h"

#define BLOCK 128       /* inputs, and rows, that share a scale */
#define ROW_PANEL 16    /* rows that pass over a panel of columns while they lie in the first cache */
#define COLUMN_PANEL 48 /* columns whose inputs stay in the second cache */
#define MOST_ROWS 4
#define MOST_COLUMNS 3

#define INLINE static inline __attribute__((always_inline))

/* Columns first..first+C-1 of a tile, and where they are written. */
struct tile {
    const struct th_product *product;
    int row, column;
};

INLINE const float *column_of(const struct th_product *product, int column)
{
    int row = product->x_rows != NULL ? product->x_rows[column] : column;
    return product->x + (size_t)row * (size_t)product->x_stride;
}

INLINE void write(const struct tile *tile, int r, int c, float value)
{
    const struct th_product *product = tile->product;
    product->y[(size_t)(tile->column + c) * (size_t)product->y_stride + (size_t)(tile->row + r)] =
        th_round_if(value, product->round);
}

INLINE void bf16_tile(const struct tile *tile, const int rows, const int columns)
{
    const struct th_product *product = tile->product;
    const int inner = product->inner, whole = inner & ~15, rest = inner - whole;
    const uint16_t *weight[MOST_ROWS];
    const float *x[MOST_COLUMNS];
    v16 sums[MOST_ROWS][MOST_COLUMNS];
    for (int r = 0; r < rows; r++) weight[r] = product->bf16 + (size_t)(tile->row + r) * (size_t)inner;
    for (int c = 0; c < columns; c++) x[c] = column_of(product, tile->column + c);
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) sums[r][c] = v16_zero();
    for (int k = 0; k < whole; k += 16) {
        v16 input[MOST_COLUMNS];
        for (int c = 0; c < columns; c++) input[c] = v16_load(x[c] + k);
        for (int r = 0; r < rows; r++) {
            v16 w = v16_load_bf16(weight[r] + k);
            for (int c = 0; c < columns; c++) sums[r][c] = v16_fma(w, input[c], sums[r][c]);
        }
    }
    if (rest > 0) {
        for (int r = 0; r < rows; r++) {
            v16 w = v16_load_bf16_part(weight[r] + whole, rest);
            for (int c = 0; c < columns; c++) sums[r][c] = v16_fma(w, v16_load_part(x[c] + whole, rest), sums[r][c]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) write(tile, r, c, v16_sum(sums[r][c]));
}

/* Weights are read as E4M3 value * 2^-8 (exact), so 2^8 goes into the scale (exact too). */
INLINE void e4m3_tile(const struct tile *tile, const int rows, const int columns)
{
    const struct th_product *product = tile->product;
    const int inner = product->inner, blocks = (inner + BLOCK - 1) / BLOCK;
    v16 totals[MOST_ROWS][MOST_COLUMNS];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) totals[r][c] = v16_zero();
    for (int block = 0; block < blocks; block++) {
        const int first = block * BLOCK, end = inner - first < BLOCK ? inner : first + BLOCK, whole = first + ((end - first) & ~15);
        v16 sums[MOST_ROWS][MOST_COLUMNS];
        const uint8_t *weight[MOST_ROWS];
        const float *x[MOST_COLUMNS];
        for (int r = 0; r < rows; r++) weight[r] = product->codes + (size_t)(tile->row + r) * (size_t)inner;
        for (int c = 0; c < columns; c++) x[c] = column_of(product, tile->column + c);
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c++) sums[r][c] = v16_zero();
        for (int k = first; k < whole; k += 16) {
            v16 input[MOST_COLUMNS];
            for (int c = 0; c < columns; c++) input[c] = v16_load(x[c] + k);
            for (int r = 0; r < rows; r++) {
                v16 w = v16_load_e4m3_scaled(weight[r] + k);
                for (int c = 0; c < columns; c++) sums[r][c] = v16_fma(w, input[c], sums[r][c]);
            }
        }
        if (whole < end) {
            for (int r = 0; r < rows; r++) {
                v16 w = v16_load_e4m3_scaled_part(weight[r] + whole, end - whole);
                for (int c = 0; c < columns; c++) sums[r][c] = v16_fma(w, v16_load_part(x[c] + whole, end - whole), sums[r][c]);
            }
        }
        for (int c = 0; c < columns; c++) {
            int row = product->x_rows != NULL ? product->x_rows[tile->column + c] : tile->column + c;
            float x_scale = product->x_scales != NULL ? product->x_scales[(size_t)row * (size_t)blocks + (size_t)block] : 1.0f;
            for (int r = 0; r < rows; r++) {
                float scale = x_scale * product->scales[(size_t)((tile->row + r) / BLOCK) * (size_t)blocks + (size_t)block];
                totals[r][c] = v16_fma(sums[r][c], v16_set1(scale * 256.0f), totals[r][c]);
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) write(tile, r, c, v16_sum(totals[r][c]));
}

INLINE void one_tile(const struct tile *tile, const int rows, const int columns)
{
    if (tile->product->bf16 != NULL)
        bf16_tile(tile, rows, columns);
    else
        e4m3_tile(tile, rows, columns);
}

static __attribute__((noinline)) void tile_2x3(const struct tile *tile)
{
    one_tile(tile, 2, 3);
}
static __attribute__((noinline)) void tile_2x2(const struct tile *tile)
{
    one_tile(tile, 2, 2);
}
static __attribute__((noinline)) void tile_1x3(const struct tile *tile)
{
    one_tile(tile, 1, 3);
}
static __attribute__((noinline)) void tile_1x1(const struct tile *tile)
{
    one_tile(tile, 1, 1);
}
static __attribute__((noinline)) void tile_4x1(const struct tile *tile)
{
    one_tile(tile, 4, 1);
}

/* Up to four rows times three, two or one columns. */
static void some_rows(const struct th_product *product, int row, int rows, int column, int columns)
{
    struct tile tile = {product, row, column};
    if (columns == 1 && rows == 4) {
        tile_4x1(&tile);
        return;
    }
    for (; rows >= 2 && columns >= 2; rows -= 2, tile.row += 2) (columns == 3 ? tile_2x3 : tile_2x2)(&tile);
    for (; rows > 0; rows--, tile.row++) {
        if (columns == 3) {
            tile_1x3(&tile);
            continue;
        }
        for (int c = 0; c < columns; c++) {
            tile.column = column + c;
            tile_1x1(&tile);
        }
    }
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

void TH_NAME(th_lm_product)(const struct th_product *product, int begin, int end)
{
    for (int first = 0; first < product->columns; first += COLUMN_PANEL) {
        int last = smaller(product->columns, first + COLUMN_PANEL);
        for (int panel = begin; panel < end; panel += ROW_PANEL) {
            int panel_end = smaller(end, panel + ROW_PANEL);
            for (int column = first; column < last; column += MOST_COLUMNS)
                for (int row = panel; row < panel_end; row += MOST_ROWS)
                    some_rows(product, row, smaller(MOST_ROWS, panel_end - row), column, smaller(MOST_COLUMNS, last - column));
        }
    }
}
