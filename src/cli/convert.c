/* convert.c - `thespis convert codec`. */
#include <string.h>

#include "cli/options.h"
#include "engine/inspect.h"

int cli_convert(const struct cli_settings *settings)
{
    if (settings->word_count != 3 || strcmp(settings->words[0], "codec") != 0)
        return cli_misuse("convert takes: codec codec.pth codec.safetensors");
    if (cli_replaces("the new codec", settings->words[2], settings->words[1]) != 0) return 2;
    thespis_error error;
    if (th_convert_codec(settings->words[1], settings->words[2], &error) != THESPIS_OK) return cli_fail(&error);
    if (!settings->quiet) fprintf(stderr, "wrote %s\n", settings->words[2]);
    return 0;
}
