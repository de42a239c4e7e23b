/* image.h - pictures of 8-bit RGB, and PNG files of them. */
#ifndef THESPIS_AUDIO_IMAGE_H
#define THESPIS_AUDIO_IMAGE_H

#include "base/file.h"

#define TH_IMAGE_MOST 16384 /* pixels of a side */

struct th_colour {
    uint8_t red, green, blue;
};

struct th_image {
    int width, height;
    struct th_colour *pixels; /* [height][width], rows from the top */
};

/* All of one colour; freed with th_image_free. */
thespis_status th_image_new(int width, int height, struct th_colour colour, struct th_image *image, thespis_error *error);
void th_image_free(struct th_image *image);

/* What lies outside of the image is left out. */
void th_image_fill(struct th_image *image, int x, int y, int width, int height, struct th_colour colour);
/* Digits, letters "kHzs" and "." in a font of 3 by 5 dots, each `scale` pixels wide. */
void th_image_text(struct th_image *image, int x, int y, const char *text, int scale, struct th_colour colour);
int th_image_text_width(const char *text, int scale);

/* From dark blue over green to yellow, for 0..1; what is no number is 0. */
struct th_colour th_colour_scale(double value);

/* Writes the whole file; committing is the caller's. */
thespis_status th_image_write_png(const struct th_image *image, struct th_output *output, thespis_error *error);

#endif
