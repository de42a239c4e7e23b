/* surprise.h - how unexpected real speech is to the network: the built-in voices' own recordings as codes, frame after frame,
 * against what the network gives each code. A hearing test draws at random and so wavers by some hundredths; this does not waver at
 * all, and so tells a network that is only a little worse. */
#ifndef TESTS_QUALITY_SURPRISE_H
#define TESTS_QUALITY_SURPRISE_H

#include "base/error.h"

/* Mean of -log(probability) over the frames of the voices, in nats: of the main token, and of a code (mean of the others). `voices`
 * are names of files in checkpoint/voices, spoken by tag 0, 1, ... */
thespis_status surprise_measure(const char *checkpoint, const char *const *voices, int count, double *token, double *code,
                                thespis_error *error);

#endif
