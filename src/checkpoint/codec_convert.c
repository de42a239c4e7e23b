/* codec_convert.c - writes a codec.pth's folded weights as codec.safetensors. */
#include <stdlib.h>

#include "base/memory.h"
#include "base/sha256.h"
#include "checkpoint/codec.h"
#include "checkpoint/codec_weights.h"

/* All bytes of the file, and so also of the buffers that loading leaves alone. */
static void hash_source(const struct th_codec_weights *weights, char hex[65])
{
    struct th_sha256 hash;
    th_sha256_begin(&hash);
    th_sha256_add(&hash, weights->pth.map.data, weights->pth.map.bytes);
    th_sha256_end(&hash, hex);
}

static json_t *make_metadata(const struct th_codec *codec)
{
    char source[65];
    json_t *metadata = json_object();
    if (metadata == NULL) return NULL;
    hash_source(codec->storage, source);
    if (th_codec_state(codec, metadata) && json_object_set_new(metadata, "source_sha256", json_string(source)) == 0 &&
        json_object_set_new(metadata, "codec_id", json_string(codec->id)) == 0)
        return metadata;
    json_decref(metadata);
    return NULL;
}

static thespis_status write_codec(const struct th_codec *codec, const char *path, thespis_error *error)
{
    const struct th_codec_weights *weights = codec->storage;
    struct th_tensor_out *tensors = NULL;
    TH_TRY(TH_ALLOC(&tensors, weights->count, "a list of tensors", error));
    for (size_t i = 0; i < weights->count; i++) {
        const struct th_codec_weight *weight = &weights->weights[i];
        tensors[i] = (struct th_tensor_out){.name = weight->name, .dtype = TH_F32, .rank = weight->rank, .data = weight->data};
        for (int k = 0; k < weight->rank; k++) tensors[i].shape[k] = weight->shape[k];
    }
    json_t *metadata = make_metadata(codec);
    thespis_status status = metadata == NULL ? th_fail_memory(error, "the codec's metadata", 0)
                                             : th_safetensors_write(path, tensors, weights->count, metadata, error);
    json_decref(metadata);
    th_free(tensors);
    return status;
}

thespis_status th_codec_convert(const char *pth_path, const char *out_path, thespis_error *error)
{
    struct th_codec *codec = NULL;
    TH_TRY(th_codec_open(pth_path, TH_CODEC_BOTH, &codec, error));
    thespis_status status = THESPIS_OK;
    if (((const struct th_codec_weights *)codec->storage)->folded)
        status = th_fail(error, THESPIS_INVALID, "'%s' is converted already, a codec.pth was expected", pth_path);
    if (status == THESPIS_OK) status = write_codec(codec, out_path, error);
    th_codec_close(codec);
    return status;
}
