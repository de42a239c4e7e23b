/* parts.h - what is opened together: model, codec, tokenizer and the backend that runs them. The engine adds threads to it; checks
 * use it bare. */
#ifndef THESPIS_ENGINE_PARTS_H
#define THESPIS_ENGINE_PARTS_H

#include "backend/backend.h"
#include "text/prompt.h"

struct th_parts {
    struct th_model *model;         /* NULL: the codec alone */
    struct th_codec *codec;         /* NULL: the model alone (checks) */
    struct th_tokenizer *tokenizer; /* NULL without a model */
    struct th_backend *backend;
    thespis_precision precision; /* f32 or bf16: what the backend runs in */
    struct th_prompt_shape shape;
    int codebooks;     /* of model and codec */
    int codebook_size; /* codes the model draws; without a model the codec's largest book */
    int max_rows;      /* context a lane will have; 0 without a model */
    int threads;
};

enum { TH_PARTS_NEED_CODEC = 1 };

/* Opens what options name. Without TH_PARTS_NEED_CODEC a checkpoint folder without a codec is accepted. */
thespis_status th_parts_open(const thespis_engine_options *options, int flags, struct th_parts *parts, thespis_error *error);
void th_parts_close(struct th_parts *parts);

#endif
