/* fuzz_config.c - config.json: what is accepted keeps what the rest of the library takes for granted. */
#include "fuzz.h"

#include "checkpoint/config.h"

static void fuzz(const uint8_t *data, size_t size)
{
    struct th_config c;
    thespis_error error;
    if (!fuzz_told(th_config_parse((const char *)data, size, "config.json", &c, &error), &error)) return;
    if (c.backbone.layers < 1 || c.backbone.hidden < 1 || c.backbone.heads % c.backbone.kv_heads != 0)
        fuzz_bad("backbone", "shape");
    if (c.tower.codebooks < 1 || c.frame_width != 1 + c.tower.codebooks) fuzz_bad("tower", "codebooks");
    if (c.semantic_end - c.semantic_start + 1 != c.tower.codebook_size || c.eos >= c.backbone.vocab) fuzz_bad("tokens", "band");
}

FUZZ_TARGET
