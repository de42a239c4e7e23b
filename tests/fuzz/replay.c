/* replay.c - runs a fuzz target over files without libFuzzer: replay FOLDER|FILE... What a fuzzer once found stays found. */
#include <dirent.h>
#include <sys/stat.h>

#include "fuzz.h"

static int runs;

static int run_file(const char *path)
{
    static uint8_t data[1 << 20];
    FILE *in = fopen(path, "rb");
    if (in == NULL) {
        perror(path);
        return 1;
    }
    size_t size = fread(data, 1, sizeof data, in);
    fclose(in);
    uint8_t *exact = malloc(size); /* so that a sanitizer sees a byte past the end */
    if (exact == NULL && size > 0) return 1;
    if (size > 0) memcpy(exact, data, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
    runs++;
    return 0;
}

static int run_folder(const char *path)
{
    DIR *folder = opendir(path);
    const struct dirent *item;
    int bad = 0;
    if (folder == NULL) return run_file(path);
    while ((item = readdir(folder)) != NULL) {
        char file[4096];
        if (item->d_name[0] == '.') continue;
        snprintf(file, sizeof file, "%s/%s", path, item->d_name);
        bad |= run_file(file);
    }
    closedir(folder);
    return bad;
}

int main(int argc, char **argv)
{
    int bad = 0;
    for (int i = 1; i < argc; i++) bad |= run_folder(argv[i]);
    printf("%d files\n", runs);
    return bad || runs == 0;
}
