/* batch.h - `thespis speak --batch FILE.jsonl`: many takes, a few at a time, resumable. */
#ifndef THESPIS_CLI_BATCH_H
#define THESPIS_CLI_BATCH_H

#include "cli/options.h"

int cli_batch(const struct cli_settings *settings);

#endif
