/* make_manual.h - man pages and shell completion, made from the program's own tables of commands and options. */
#ifndef THESPIS_MAKE_MANUAL_H
#define THESPIS_MAKE_MANUAL_H

#include <stdio.h>

#include "cli/options.h"

/* pages.c: thespis.1 and thespis-COMMAND.1 in roff's man macros. */
void manual_overview(FILE *out);
void manual_command(FILE *out, const struct cli_command *command);

/* completion.c: one file a shell. */
void complete_bash(FILE *out);
void complete_zsh(FILE *out);
void complete_fish(FILE *out);

#endif
