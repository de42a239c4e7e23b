/* completion.c - see make_manual.h. What an option's value is called tells how it is completed: FILE and DIR are paths, NAME of
 * --voice a stored voice; choices are listed. */
#include <string.h>

#include "make_manual.h"

static int is_folder(const struct cli_option_info *o)
{
    return strcmp(o->value, "DIR") == 0;
}

static int is_file(const struct cli_option_info *o)
{
    return strncmp(o->value, "FILE", 4) == 0;
}

static int is_voice(const struct cli_option_info *o)
{
    return strcmp(o->name, "--voice") == 0;
}

/* What may stand as a command's first word, or NULL: files. */
static const char *words_of(const struct cli_command *command)
{
    if (strcmp(command->name, "voice") == 0) return "add list show remove say";
    if (strcmp(command->name, "inspect") == 0) return "checkpoint tokens prompt chunks recording codes voice";
    return strcmp(command->name, "convert") == 0 ? "codec" : NULL;
}

static void put_commands(FILE *out)
{
    for (const struct cli_command *c = cli_commands; c->name != NULL; c++) fprintf(out, "%s ", c->name);
    fputs("help version", out);
}

/* The first sentence of a help text, without what the shells' quotes and zsh's syntax would take for their own. */
static void put_brief(FILE *out, const char *help)
{
    for (; *help != '\0' && !(*help == '.' && (help[1] == ' ' || help[1] == '\0')); help++)
        if (strchr("'\"`[]:\\$", *help) == NULL) fputc(*help, out);
}

/* ---- bash -------------------------------------------------------------------------------------------------------------------- */

static void bash_values(FILE *out, const struct cli_command *command)
{
    struct cli_option_info o;
    for (size_t i = 0; cli_option_at(command, i, &o); i++) {
        if (o.value == NULL) continue;
        fprintf(out, "            %s) ", o.name);
        if (o.choice != NULL)
            fprintf(out, "COMPREPLY=($(compgen -W '%s' -- \"$word\"))", o.choice);
        else if (is_voice(&o))
            fputs("COMPREPLY=($(compgen -W \"$(_thespis_voices)\" -- \"$word\") $(compgen -f -- \"$word\"))", out);
        else if (is_folder(&o))
            fputs("COMPREPLY=($(compgen -d -- \"$word\"))", out);
        else if (is_file(&o))
            fputs("COMPREPLY=($(compgen -f -- \"$word\"))", out);
        else
            fputs("COMPREPLY=()", out);
        fputs("; return ;;\n", out);
    }
}

static void bash_command(FILE *out, const struct cli_command *command)
{
    struct cli_option_info o;
    fprintf(out, "    %s)\n        case \"$before\" in\n", command->name);
    bash_values(out, command);
    fputs("        esac\n        options='", out);
    for (size_t i = 0; cli_option_at(command, i, &o); i++) fprintf(out, "%s%s", i > 0 ? " " : "", o.name);
    fprintf(out, "'\n        words='%s' ;;\n", words_of(command) != NULL ? words_of(command) : "");
}

void complete_bash(FILE *out)
{
    fputs("# bash completion for thespis\n"
          "_thespis_voices() { thespis voice list 2>/dev/null | awk 'NR > 1 {print $1}'; }\n\n"
          "_thespis() {\n"
          "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} options= words=\n"
          "    compopt -o filenames 2>/dev/null\n"
          "    if [ \"$COMP_CWORD\" -eq 1 ] || { [ \"$COMP_CWORD\" -eq 2 ] && [ \"$before\" = help ]; }; then\n"
          "        COMPREPLY=($(compgen -W '",
          out);
    put_commands(out);
    fputs("' -- \"$word\"))\n        return\n    fi\n    case \"${COMP_WORDS[1]}\" in\n", out);
    for (const struct cli_command *c = cli_commands; c->name != NULL; c++) bash_command(out, c);
    fputs("    esac\n"
          "    if [ \"${word#-}\" != \"$word\" ]; then\n"
          "        COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n"
          "    elif [ -n \"$words\" ] && [ \"$COMP_CWORD\" -eq 2 ]; then\n"
          "        COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
          "    else\n"
          "        COMPREPLY=($(compgen -f -- \"$word\"))\n"
          "    fi\n"
          "}\n"
          "complete -F _thespis thespis\n",
          out);
}

/* ---- zsh --------------------------------------------------------------------------------------------------------------------- */

static void zsh_option(FILE *out, const struct cli_option_info *o)
{
    fprintf(out, " \\\n            '%s%s%s[", strncmp(o->name, "--ref", 5) == 0 ? "*" : "", o->name, o->value != NULL ? "=" : "");
    put_brief(out, o->help);
    fputc(']', out);
    if (o->value != NULL) {
        fprintf(out, ":%s:", o->value);
        if (o->choice != NULL)
            fprintf(out, "(%s)", o->choice);
        else if (is_folder(o))
            fputs("_files -/", out);
        else if (is_file(o))
            fputs("_files", out);
        else if (is_voice(o))
            fputs("_thespis_voices", out);
    }
    fputc('\'', out);
}

void complete_zsh(FILE *out)
{
    struct cli_option_info o;
    fputs("#compdef thespis\n"
          "_thespis_voices() {\n"
          "    local -a voices\n"
          "    voices=(${(f)\"$(thespis voice list 2>/dev/null | awk 'NR > 1 {print $1}')\"})\n"
          "    _alternative 'voices:voice:compadd -a voices' 'files:file:_files'\n"
          "}\n\n"
          "_thespis() {\n"
          "    local -a commands=(\n",
          out);
    for (const struct cli_command *c = cli_commands; c->name != NULL; c++) {
        fprintf(out, "        '%s:", c->name);
        put_brief(out, c->summary);
        fputs("'\n", out);
    }
    fputs("        'help:tell all of a command'\n        'version:print the version'\n    )\n"
          "    if (( CURRENT == 2 )); then\n        _describe command commands\n        return\n    fi\n"
          "    local command=$words[2]\n    shift words\n    (( CURRENT-- ))\n    case $command in\n",
          out);
    for (const struct cli_command *c = cli_commands; c->name != NULL; c++) {
        fprintf(out, "        %s) _arguments", c->name);
        for (size_t i = 0; cli_option_at(c, i, &o); i++) zsh_option(out, &o);
        if (words_of(c) != NULL)
            fprintf(out, " \\\n            '1:word:(%s)' '*:file:_files' ;;\n", words_of(c));
        else
            fputs(" \\\n            '*:file:_files' ;;\n", out);
    }
    fputs("        help) _describe command commands ;;\n    esac\n}\n\n_thespis \"$@\"\n", out);
}

/* ---- fish -------------------------------------------------------------------------------------------------------------------- */

static void fish_option(FILE *out, const char *command, const struct cli_option_info *o)
{
    fprintf(out, "complete -c thespis -n '__fish_seen_subcommand_from %s' -l %s", command, o->name + 2);
    if (o->value != NULL && o->choice != NULL)
        fprintf(out, " -x -a '%s'", o->choice);
    else if (o->value != NULL && is_folder(o))
        fputs(" -x -a '(__fish_complete_directories)'", out);
    else if (o->value != NULL && is_voice(o))
        fputs(" -r -a '(thespis voice list 2>/dev/null | string match -rg \"^(\\S+)\" | tail -n +2)'", out);
    else if (o->value != NULL)
        fputs(is_file(o) ? " -r -F" : " -x", out);
    fputs(" -d '", out);
    put_brief(out, o->help);
    fputs("'\n", out);
}

void complete_fish(FILE *out)
{
    struct cli_option_info o;
    fputs("# fish completion for thespis\ncomplete -c thespis -n __fish_use_subcommand -f\n", out);
    for (const struct cli_command *c = cli_commands; c->name != NULL; c++) {
        fprintf(out, "complete -c thespis -n __fish_use_subcommand -a %s -d '", c->name);
        put_brief(out, c->summary);
        fputs("'\n", out);
    }
    fputs("complete -c thespis -n __fish_use_subcommand -a 'help version'\ncomplete -c thespis -f -n '__fish_seen_subcommand_from "
          "help' "
          "-a '",
          out);
    put_commands(out);
    fputs("'\n", out);
    for (const struct cli_command *c = cli_commands; c->name != NULL; c++) {
        if (words_of(c) != NULL)
            fprintf(out,
                    "complete -c thespis -f -n '__fish_seen_subcommand_from %s; and not __fish_seen_subcommand_from %s' -a '%s'\n",
                    c->name, words_of(c), words_of(c));
        for (size_t i = 0; cli_option_at(c, i, &o); i++) fish_option(out, c->name, &o);
    }
}
