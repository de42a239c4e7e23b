/* picture.h - --plot and --spectrogram: what was heard as a PNG file and on the terminal. */
#ifndef THESPIS_CLI_PICTURE_H
#define THESPIS_CLI_PICTURE_H

#include "cli/options.h"
#include "engine/look.h"

struct cli_picture {
    const struct cli_settings *settings;
    struct th_output png;
    int watch;
    float *samples; /* [count] heard so far; kept only when a picture is wanted */
    size_t count, capacity;
};

/* Opens the file of --plot, so that a path that cannot be written is told before anything is spoken. */
thespis_status cli_picture_open(const struct cli_settings *settings, struct cli_picture *picture, thespis_error *error);
thespis_status cli_picture_add(struct cli_picture *picture, const float *samples, size_t count, thespis_error *error);
/* Draws what was heard, with a mark where each chunk but the first begins; the terminal is standard error. */
thespis_status cli_picture_of_request(struct cli_picture *picture, const thespis_request *request, thespis_error *error);
/* Draws a recording or codes; the terminal is `out`, NULL for none. */
thespis_status cli_picture_of_look(struct cli_picture *picture, const struct th_look *look, FILE *out, thespis_error *error);
void cli_picture_close(struct cli_picture *picture);

#endif
