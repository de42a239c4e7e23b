/* main.c - make_manual FOLDER: writes FOLDER/man1 and FOLDER/completion. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "make_manual.h"

static int fail(const char *path)
{
    fprintf(stderr, "make_manual: %s: %s\n", path, strerror(errno));
    return 1;
}

static int make_folder(const char *folder, const char *name, char path[4096])
{
    snprintf(path, 4096, "%s/%s", folder, name);
    return mkdir(path, 0777) == 0 || errno == EEXIST ? 0 : fail(path);
}

/* One file, by a writer that is given the command when there is one. */
static int write_file(const char *folder, const char *name, void (*whole)(FILE *), const struct cli_command *command)
{
    char path[4096 + 300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *out = fopen(path, "w");
    if (out == NULL) return fail(path);
    if (command != NULL)
        manual_command(out, command);
    else
        whole(out);
    int bad = ferror(out);
    return fclose(out) != 0 || bad ? fail(path) : 0;
}

static int write_pages(const char *folder)
{
    char man[4096], name[300];
    if (make_folder(folder, "man1", man) != 0 || write_file(man, "thespis.1", manual_overview, NULL) != 0) return 1;
    for (const struct cli_command *c = cli_commands; c->name != NULL; c++) {
        snprintf(name, sizeof name, "thespis-%s.1", c->name);
        if (write_file(man, name, NULL, c) != 0) return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    char completion[4096];
    if (argc != 2) {
        fputs("Usage: make_manual FOLDER\n", stderr);
        return 2;
    }
    if (mkdir(argv[1], 0777) != 0 && errno != EEXIST) return fail(argv[1]);
    return write_pages(argv[1]) != 0 || make_folder(argv[1], "completion", completion) != 0 ||
           write_file(completion, "bash", complete_bash, NULL) != 0 || write_file(completion, "zsh", complete_zsh, NULL) != 0 ||
           write_file(completion, "fish", complete_fish, NULL) != 0;
}
