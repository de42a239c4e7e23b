/* stream.c - see make_checkpoint.h. While the threads fill one buffer, one of them writes the other. */
#include <string.h>

#include "base/memory.h"
#include "make_checkpoint.h"

#define BUFFER_BYTES ((size_t)32 << 20)
#define MAX_PARTS 8192
#define PART_UNITS 131072 /* elements of a plain tensor one thread makes at a time */

struct piece {
    struct th_part part; /* recipe NULL: literal bytes, already in place */
    size_t offset;
};

struct buffer {
    uint8_t *bytes; /* [BUFFER_BYTES] */
    size_t used;
    struct piece *pieces; /* [MAX_PARTS] */
    int count;
};

struct th_stream {
    struct th_pool *pool;
    uint64_t seed;
    struct th_output *output; /* NULL: nothing is written */
    struct buffer buffers[2];
    int filling;       /* the buffer that is being planned; the other one is ready to be written */
    uint64_t position; /* bytes handed over so far */
    uint32_t crc;
    uint32_t crc_table[8][256];
    thespis_status status; /* of the write that runs beside the making */
    thespis_error error;
};

static void crc_prepare(uint32_t table[8][256])
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++) c = c & 1u ? 0xedb88320u ^ c >> 1 : c >> 1;
        table[0][i] = c;
    }
    for (int k = 1; k < 8; k++)
        for (int i = 0; i < 256; i++) table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 0xffu];
}

/* Eight bytes a step: byte i of the word goes through the table of the bytes that follow it. */
static uint32_t crc_add(uint32_t table[8][256], uint32_t crc, const uint8_t *data, size_t bytes)
{
    crc = ~crc;
    while (bytes >= 8) {
        uint32_t low, high;
        memcpy(&low, data, 4);
        memcpy(&high, data + 4, 4);
        low ^= crc;
        crc = table[7][low & 0xff] ^ table[6][low >> 8 & 0xff] ^ table[5][low >> 16 & 0xff] ^ table[4][low >> 24] ^
              table[3][high & 0xff] ^ table[2][high >> 8 & 0xff] ^ table[1][high >> 16 & 0xff] ^ table[0][high >> 24];
        data += 8;
        bytes -= 8;
    }
    while (bytes-- > 0) crc = crc >> 8 ^ table[0][(crc ^ *data++) & 0xff];
    return ~crc;
}

thespis_status th_stream_open(struct th_pool *pool, uint64_t seed, struct th_output *output, struct th_stream **out,
                              thespis_error *error)
{
    struct th_stream *stream;
    *out = NULL;
    TH_TRY(TH_ALLOC(&stream, 1, "a stream", error));
    stream->pool = pool;
    stream->seed = seed;
    stream->output = output;
    crc_prepare(stream->crc_table);
    thespis_status status = THESPIS_OK;
    for (int i = 0; i < 2 && status == THESPIS_OK; i++) {
        status = TH_ALLOC(&stream->buffers[i].bytes, BUFFER_BYTES, "a buffer", error);
        if (status == THESPIS_OK) status = TH_ALLOC(&stream->buffers[i].pieces, MAX_PARTS, "a buffer", error);
    }
    if (status != THESPIS_OK) {
        th_stream_close(stream);
        return status;
    }
    *out = stream;
    return THESPIS_OK;
}

void th_stream_close(struct th_stream *stream)
{
    if (stream == NULL) return;
    for (int i = 0; i < 2; i++) {
        th_free(stream->buffers[i].bytes);
        th_free(stream->buffers[i].pieces);
    }
    th_free(stream);
}

static void write_ready(struct th_stream *stream)
{
    struct buffer *ready = &stream->buffers[1 - stream->filling];
    if (ready->used == 0 || stream->status != THESPIS_OK) return;
    stream->crc = crc_add(stream->crc_table, stream->crc, ready->bytes, ready->used);
    if (stream->output != NULL) stream->status = th_output_write(stream->output, ready->bytes, ready->used, &stream->error);
}

/* Item 0 writes the buffer made before; item i makes piece i - 1 of this one. */
static void task(void *context, int begin, int end)
{
    struct th_stream *stream = context;
    struct buffer *buffer = &stream->buffers[stream->filling];
    for (int i = begin; i < end; i++) {
        if (i == 0)
            write_ready(stream);
        else if (buffer->pieces[i - 1].part.recipe != NULL)
            th_part_make(&buffer->pieces[i - 1].part, stream->seed, buffer->bytes + buffer->pieces[i - 1].offset);
    }
}

/* Makes what is planned, writes what was ready, and swaps. */
static thespis_status turn(struct th_stream *stream, thespis_error *error)
{
    th_pool_run(stream->pool, stream->buffers[stream->filling].count + 1, 1, task, stream);
    stream->filling = 1 - stream->filling;
    stream->buffers[stream->filling].used = 0;
    stream->buffers[stream->filling].count = 0;
    if (stream->status != THESPIS_OK && error != NULL) *error = stream->error;
    return stream->status;
}

thespis_status th_stream_flush(struct th_stream *stream, thespis_error *error)
{
    TH_TRY(turn(stream, error));
    return turn(stream, error);
}

/* Room for a piece of `bytes`, after a turn if need be. */
static thespis_status reserve(struct th_stream *stream, size_t bytes, struct piece **piece, thespis_error *error)
{
    struct buffer *buffer = &stream->buffers[stream->filling];
    if (buffer->used + bytes > BUFFER_BYTES || buffer->count == MAX_PARTS) {
        TH_TRY(turn(stream, error));
        buffer = &stream->buffers[stream->filling];
    }
    *piece = &buffer->pieces[buffer->count++];
    (*piece)->offset = buffer->used;
    buffer->used += bytes;
    stream->position += bytes;
    return THESPIS_OK;
}

thespis_status th_stream_bytes(struct th_stream *stream, const void *data, size_t bytes, thespis_error *error)
{
    const uint8_t *from = data;
    while (bytes > 0) {
        size_t count = bytes < BUFFER_BYTES / 4 ? bytes : BUFFER_BYTES / 4;
        struct piece *piece;
        TH_TRY(reserve(stream, count, &piece, error));
        piece->part.recipe = NULL;
        memcpy(stream->buffers[stream->filling].bytes + piece->offset, from, count);
        from += count;
        bytes -= count;
    }
    return THESPIS_OK;
}

thespis_status th_stream_recipe(struct th_stream *stream, const struct th_recipe *recipe, thespis_error *error)
{
    int64_t units = th_recipe_units(recipe);
    int64_t step = recipe->rule == TH_RULE_E4M3 || recipe->rule == TH_RULE_SCALE ? 1 : PART_UNITS;
    for (int64_t slice = 0; slice < recipe->slices; slice++) {
        for (int64_t begin = 0; begin < units; begin += step) {
            struct th_part part = {recipe, slice, begin, begin + step < units ? begin + step : units};
            struct piece *piece;
            TH_TRY(reserve(stream, th_part_bytes(&part), &piece, error));
            piece->part = part;
        }
    }
    return THESPIS_OK;
}

uint32_t th_stream_take_crc(struct th_stream *stream)
{
    uint32_t crc = stream->crc;
    stream->crc = 0;
    return crc;
}

uint64_t th_stream_position(const struct th_stream *stream)
{
    return stream->position;
}

thespis_status th_stream_hole(struct th_stream *stream, const struct th_recipe *recipe, thespis_error *error)
{
    struct th_hole hole;
    if (!th_recipe_hole(recipe, stream->seed, &hole)) return th_stream_recipe(stream, recipe, error);
    TH_TRY(th_stream_bytes(stream, &hole, sizeof hole, error));
    TH_TRY(th_stream_flush(stream, error));
    stream->position += recipe->bytes - sizeof hole;
    return th_output_skip(stream->output, recipe->bytes - sizeof hole, error);
}
