/* compare.h - our arrays against a reference's: how much of the allowed error is used, and every pick that differs. */
#ifndef THESPIS_ENGINE_COMPARE_H
#define THESPIS_ENGINE_COMPARE_H

#include "checkpoint/config.h"
#include "engine/arrays.h"
#include "engine/check.h"

/* The limits a percent is of: tools/oracle/README.md, "exact". */
#define TH_ALLOWED_ROW 1e-8   /* 1 - cosine of the worst row of a layer */
#define TH_ALLOWED_LOGIT 1e-4 /* largest difference over the largest logit */
#define TH_CLEAR_MARGIN 1e-3  /* picks must agree where the reference's best two are further apart */

/* Compares what both have: layers, logits and picks, experts, frames, codes, waveform. *differences counts clear picks that differ
 * and codes that differ. */
thespis_status th_compare(struct th_arrays *ours, const struct th_config *config, const char *folder, th_check_line line,
                          void *context, int *differences, thespis_error *error);

#endif
