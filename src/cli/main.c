/* main.c - finds the command and runs it. Exit status: 0 well, 1 failed (one line on standard error), 2 bad use. */
#include <signal.h>
#include <string.h>

#include "cli/options.h"

static const struct cli_command *find_command(const char *name)
{
    for (const struct cli_command *c = cli_commands; c->name != NULL; c++)
        if (strcmp(c->name, name) == 0) return c;
    return NULL;
}

static void overview(FILE *out)
{
    fprintf(out, "Thespis %s speaks with Fish Audio Drama 3.\n\nUsage: thespis COMMAND [options]\n\nCommands:\n",
            thespis_version());
    for (const struct cli_command *c = cli_commands; c->name != NULL; c++) fprintf(out, "  %-10s %s\n", c->name, c->summary);
    fprintf(out, "  %-10s %s\n  %-10s %s\n", "help", "help COMMAND tells all of a command's options", "version",
            "print the version");
}

/* Help and version, whose only failure is that nobody takes the text. */
static int said(FILE *out)
{
    return fflush(out) == 0 && !ferror(out) ? 0 : 1;
}

static int help(int argc, char **argv)
{
    const struct cli_command *command = argc > 0 ? find_command(argv[0]) : NULL;
    if (argc > 0 && strcmp(argv[0], "help") != 0 && strcmp(argv[0], "version") != 0 && command == NULL)
        return cli_misuse("there is no command '%.100s'", argv[0]);
    if (command != NULL)
        cli_help(stdout, command);
    else
        overview(stdout);
    return said(stdout);
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is an error of write, told like any other */
    if (argc < 2) {
        overview(stderr);
        return 2;
    }
    if (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return help(argc - 2, argv + 2);
    if (strcmp(argv[1], "version") == 0 || strcmp(argv[1], "--version") == 0) {
        printf("thespis %s\n", thespis_version());
        return said(stdout);
    }
    const struct cli_command *command = find_command(argv[1]);
    if (command == NULL) return cli_misuse("there is no command '%.100s'", argv[1]);
    struct cli_settings settings;
    char message[300];
    int status = 0;
    if (cli_parse(command, argc - 2, argv + 2, &settings, message) != 0) {
        status = cli_misuse("%s", message);
    } else if (settings.help) {
        cli_help(stdout, command);
        status = said(stdout);
    } else {
        status = command->run(&settings);
    }
    cli_release(&settings);
    return status;
}
