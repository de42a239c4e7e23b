/* pages.c - see make_manual.h. */
#include <string.h>

#include "make_manual.h"

/* Text for roff: a backslash, a hyphen and a leading control character would mean something else. */
static void put_text(FILE *out, const char *text, int at_line_start)
{
    for (; *text != '\0'; text++) {
        if (at_line_start && (*text == '.' || *text == '\'')) fputs("\\&", out);
        if (*text == '\\')
            fputs("\\e", out);
        else if (*text == '-')
            fputs("\\-", out);
        else
            fputc(*text, out);
        at_line_start = *text == '\n';
    }
}

static void put_verbatim(FILE *out, const char *text)
{
    fputs(".nf\n", out);
    put_text(out, text, 1);
    if (text[0] != '\0' && text[strlen(text) - 1] != '\n') fputc('\n', out);
    fputs(".fi\n", out);
}

static void put_header(FILE *out, const char *title, const char *summary)
{
    fprintf(out, ".\\\" Made by make_manual from the program's table of options.\n.TH ");
    for (const char *c = title; *c != '\0'; c++) fputc(*c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c, out);
    fprintf(out, " 1 \"\" \"Thespis %s\" \"Thespis\"\n.SH NAME\n", thespis_version());
    put_text(out, title, 1);
    fputs(" \\- ", out);
    put_text(out, summary, 0);
    fputc('\n', out);
}

static void put_option(FILE *out, const struct cli_option_info *o)
{
    fputs(".TP\n.B ", out);
    put_text(out, o->name, 0);
    if (o->value != NULL) {
        fputs(" \\fI", out);
        put_text(out, o->value, 0);
        fputs("\\fR", out);
    }
    fputc('\n', out);
    put_text(out, o->help, 1);
    fputc('\n', out);
    if (o->choice != NULL) {
        fputs("One of: ", out);
        put_text(out, o->choice, 0);
        fputs(".\n", out);
    }
    if (o->initial != NULL) {
        fputs("Default: ", out);
        put_text(out, o->initial, 0);
        fputs(".\n", out);
    }
}

/* Options of each group in the order of their first. */
static void put_options(FILE *out, const struct cli_command *command)
{
    struct cli_option_info o, before;
    for (size_t i = 0; cli_option_at(command, i, &o); i++) {
        int first = 1;
        for (size_t j = 0; j < i && cli_option_at(command, j, &before); j++)
            if (strcmp(before.group, o.group) == 0) first = 0;
        if (!first) continue;
        fprintf(out, ".SS %s\n", o.group);
        const char *group = o.group;
        for (size_t j = i; cli_option_at(command, j, &o); j++)
            if (strcmp(o.group, group) == 0) put_option(out, &o);
    }
}

static void put_endings(FILE *out)
{
    fputs(".SH \"EXIT STATUS\"\n0 when all went well, 1 when something failed (one line on standard error tells what), 2 for bad "
          "use.\n",
          out);
}

void manual_command(FILE *out, const struct cli_command *command)
{
    char title[100];
    snprintf(title, sizeof title, "thespis-%s", command->name);
    put_header(out, title, command->summary);
    fputs(".SH SYNOPSIS\n.B thespis\n", out);
    put_text(out, command->usage, 1);
    fputs("\n.SH DESCRIPTION\n", out);
    put_verbatim(out, command->text);
    fputs(".SH OPTIONS\n", out);
    put_options(out, command);
    if (command->examples != NULL) {
        fputs(".SH EXAMPLES\n", out);
        put_verbatim(out, command->examples);
    }
    put_endings(out);
    fputs(".SH \"SEE ALSO\"\n.BR thespis (1)\n", out);
}

void manual_overview(FILE *out)
{
    put_header(out, "thespis", "speak with Fish Audio Drama 3");
    fputs(".SH SYNOPSIS\n.B thespis\n\\fICOMMAND\\fR [options]\n.SH DESCRIPTION\nThespis says text, in the voice of a recording if "
          "wanted, while the audio is being made. It runs the text\\-to\\-speech model Fish Audio Drama 3 from its original "
          "checkpoint, and "
          "brings a small one of the same format.\n.SH COMMANDS\n",
          out);
    for (const struct cli_command *c = cli_commands; c->name != NULL; c++) {
        fprintf(out, ".TP\n.BR thespis\\-%s (1)\n", c->name);
        put_text(out, c->summary, 1);
        fputc('\n', out);
    }
    fputs(".TP\n.B help \\fR[\\fICOMMAND\\fR]\nAll of a command's options.\n.TP\n.B version\nPrint the version.\n", out);
    fputs(".SH ENVIRONMENT\n.TP\n.B THESPIS_CHECKPOINT\nThe checkpoint's folder, where \\-\\-checkpoint is not given.\n.TP\n.B "
          "THESPIS_VOICES\nThe folder of stored voices, where \\-\\-voices is not given; otherwise\n.I thespis/voices\nin "
          "XDG_DATA_HOME, "
          "otherwise\n.IR ~/.local/share/thespis/voices .\n",
          out);
    put_endings(out);
}
