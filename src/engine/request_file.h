/* request_file.h - a request as JSON, in the reference's own form: what checks and batches read. */
#ifndef THESPIS_ENGINE_REQUEST_FILE_H
#define THESPIS_ENGINE_REQUEST_FILE_H

#include "base/json.h"
#include "text/prompt.h"

struct th_request_file {
    json_t *root; /* owns every text below */
    struct th_prompt prompt;
    struct th_prompt_reference *references; /* [prompt.reference_count]; codes owned */
    struct th_prompt_turn *history;         /* [prompt.history_count]; codes owned */
    uint64_t seed;                          /* "seed", default 1 */
    float temperature, top_p;               /* default 1.0, 0.9 */
    int32_t top_k;                          /* null or absent: unlimited */
    int max_frames;                         /* 0: not given */
};

/* {"text", "references": [{"transcript", "codes": FILE.npy}], "history": [{"text", "codes"}], "seed", "temperature", "top_p",
 * "top_k", "max_frames"}; code files are relative to the JSON's folder. */
thespis_status th_request_file_read(const char *path, int codebooks, int codebook_size, struct th_request_file *file,
                                    thespis_error *error);
void th_request_file_free(struct th_request_file *file);

#endif
