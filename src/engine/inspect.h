/* inspect.h - looking without speaking: a checkpoint's numbers, a text's tokens, a prompt's rows, as JSON trees that the command
 * line prints either way. */
#ifndef THESPIS_ENGINE_INSPECT_H
#define THESPIS_ENGINE_INSPECT_H

#include <jansson.h>

#include "thespis.h"

/* Each sets *out to an object that the caller releases with json_decref. */
thespis_status th_inspect_checkpoint(const char *folder, json_t **out, thespis_error *error);
thespis_status th_inspect_tokens(const char *folder, const char *text, size_t bytes, json_t **out, thespis_error *error);
/* references: paths of codes and transcripts, or NULL. */
thespis_status th_inspect_prompt(const char *folder, const char *text, size_t bytes, const char *const *references,
                                 const char *const *transcripts, int reference_count, json_t **out, thespis_error *error);

/* Where a text would be cut: chunks with their bytes of the input. granularity and target as in thespis_request_options. */
thespis_status th_inspect_chunks(const char *text, size_t bytes, thespis_granularity granularity, int chunk_bytes, json_t **out,
                                 thespis_error *error);

thespis_status th_convert_codec(const char *pth_path, const char *out_path, thespis_error *error);

#endif
