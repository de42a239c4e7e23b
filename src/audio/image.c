/* image.c - see image.h. PNG through libpng. */
#include "audio/image.h"

#include <png.h>
#include <string.h>

#include "base/memory.h"

thespis_status th_image_new(int width, int height, struct th_colour colour, struct th_image *image, thespis_error *error)
{
    *image = (struct th_image){0};
    if (width < 1 || width > TH_IMAGE_MOST || height < 1 || height > TH_IMAGE_MOST)
        return th_fail(error, THESPIS_INVALID, "a picture of %d by %d pixels: each side must have 1 to %d", width, height,
                       TH_IMAGE_MOST);
    TH_TRY(TH_ALLOC(&image->pixels, (size_t)width * (size_t)height, "a picture", error));
    image->width = width;
    image->height = height;
    th_image_fill(image, 0, 0, width, height, colour);
    return THESPIS_OK;
}

void th_image_free(struct th_image *image)
{
    th_free(image->pixels);
    *image = (struct th_image){0};
}

void th_image_fill(struct th_image *image, int x, int y, int width, int height, struct th_colour colour)
{
    int right = x + width < image->width ? x + width : image->width,
        bottom = y + height < image->height ? y + height : image->height;
    for (int row = y < 0 ? 0 : y; row < bottom; row++)
        for (int column = x < 0 ? 0 : x; column < right; column++)
            image->pixels[(size_t)row * (size_t)image->width + (size_t)column] = colour;
}

/* ---- text -------------------------------------------------------------------------------------------------------------------- */

/* Rows from the top, three bits each. */
static const struct {
    char letter;
    uint8_t rows[5];
} font[] = {{'0', {7, 5, 5, 5, 7}}, {'1', {2, 6, 2, 2, 7}}, {'2', {7, 1, 7, 4, 7}}, {'3', {7, 1, 7, 1, 7}}, {'4', {5, 5, 7, 1, 1}},
            {'5', {7, 4, 7, 1, 7}}, {'6', {7, 4, 7, 5, 7}}, {'7', {7, 1, 1, 2, 2}}, {'8', {7, 5, 7, 5, 7}}, {'9', {7, 5, 7, 1, 7}},
            {'.', {0, 0, 0, 0, 2}}, {'k', {4, 5, 6, 5, 5}}, {'H', {5, 5, 7, 5, 5}}, {'z', {0, 7, 1, 2, 7}}, {'s', {0, 7, 4, 1, 7}}};

int th_image_text_width(const char *text, int scale)
{
    return (int)strlen(text) * 4 * scale - (text[0] != '\0' ? scale : 0);
}

void th_image_text(struct th_image *image, int x, int y, const char *text, int scale, struct th_colour colour)
{
    for (; *text != '\0'; text++, x += 4 * scale)
        for (size_t i = 0; i < sizeof font / sizeof *font; i++)
            for (int bit = 0; bit < 15 && font[i].letter == *text; bit++)
                if (font[i].rows[bit / 3] & (4 >> bit % 3))
                    th_image_fill(image, x + bit % 3 * scale, y + bit / 3 * scale, scale, scale, colour);
}

struct th_colour th_colour_scale(double value)
{
    static const struct th_colour stops[] = {{10, 8, 30},    {60, 30, 110},  {40, 100, 140},
                                             {40, 160, 120}, {150, 210, 70}, {253, 240, 120}};
    const int last = (int)(sizeof stops / sizeof *stops) - 1;
    if (!(value > 0)) return stops[0];
    if (value >= 1) return stops[last];
    int at = (int)(value * last);
    double part = value * last - at;
    const struct th_colour *a = &stops[at], *b = a + 1;
    return (struct th_colour){(uint8_t)(a->red + part * (b->red - a->red)), (uint8_t)(a->green + part * (b->green - a->green)),
                              (uint8_t)(a->blue + part * (b->blue - a->blue))};
}

/* ---- PNG --------------------------------------------------------------------------------------------------------------------- */

struct sink {
    struct th_output *output;
    thespis_status status;
    thespis_error error;
};

static void write_bytes(png_structp png, png_bytep bytes, size_t count)
{
    struct sink *sink = png_get_io_ptr(png);
    sink->status = th_output_write(sink->output, bytes, count, &sink->error);
    if (sink->status != THESPIS_OK) png_error(png, "cannot write");
}

static void flush_bytes(png_structp png)
{
    (void)png;
}

/* libpng's own complaints, such as lack of memory. Without this it would print them. */
static void complain(png_structp png, png_const_charp message)
{
    struct sink *sink = png_get_error_ptr(png);
    if (sink->status == THESPIS_OK) sink->status = th_fail(&sink->error, THESPIS_MEMORY, "cannot write a PNG: %s", message);
    longjmp(png_jmpbuf(png), 1);
}

static void ignore(png_structp png, png_const_charp message)
{
    (void)png, (void)message;
}

/* libpng comes back through longjmp when anything fails; nothing here is owned by this function. */
static void write_image(png_structp png, png_infop info, const struct th_image *image)
{
    if (setjmp(png_jmpbuf(png)) != 0) return;
    png_set_IHDR(png, info, (png_uint_32)image->width, (png_uint_32)image->height, 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_write_info(png, info);
    for (int y = 0; y < image->height; y++) png_write_row(png, (png_const_bytep)(image->pixels + (size_t)y * (size_t)image->width));
    png_write_end(png, info);
}

thespis_status th_image_write_png(const struct th_image *image, struct th_output *output, thespis_error *error)
{
    struct sink sink = {.output = output};
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &sink, complain, ignore);
    png_infop info = png != NULL ? png_create_info_struct(png) : NULL;
    if (info == NULL) {
        png_destroy_write_struct(&png, NULL);
        return th_fail(error, THESPIS_MEMORY, "not enough memory for a PNG");
    }
    png_set_write_fn(png, &sink, write_bytes, flush_bytes);
    write_image(png, info, image);
    png_destroy_write_struct(&png, &info);
    if (sink.status != THESPIS_OK && error != NULL) *error = sink.error;
    return sink.status;
}
