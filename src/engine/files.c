/* files.c - see files.h. */
#include "engine/files.h"

#include "base/file.h"
#include "base/memory.h"
#include "engine/engine.h"

static thespis_status add_codes(thespis_voice *voice, const struct th_map *map, const char *path, const char *transcript,
                                size_t transcript_bytes, thespis_error *error)
{
    const struct th_parts *p = &voice->engine->parts;
    struct th_codes codes;
    TH_TRY(th_codes_parse(map->data, map->bytes, path, p->codebooks, p->codebook_size, &codes, error));
    thespis_status status = thespis_voice_add_codes(voice, codes.codes, codes.frames, transcript, transcript_bytes, error);
    th_free(codes.codes);
    return status;
}

thespis_status th_voice_add_any(thespis_voice *voice, const char *path, const char *transcript, size_t transcript_bytes,
                                thespis_error *error)
{
    struct th_map map;
    TH_TRY(th_map_open(path, &map, error));
    if (!th_codes_is(map.data, map.bytes)) {
        th_map_close(&map);
        return thespis_voice_add_file(voice, path, transcript, transcript_bytes, error);
    }
    thespis_status status = add_codes(voice, &map, path, transcript, transcript_bytes, error);
    th_map_close(&map);
    return status;
}
