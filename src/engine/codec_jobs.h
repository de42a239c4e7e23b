/* codec_jobs.h - the codec without the model. */
#ifndef THESPIS_ENGINE_CODEC_JOBS_H
#define THESPIS_ENGINE_CODEC_JOBS_H

#include <fenv.h>

#include "thespis.h"

/* Work on a caller's thread is done in the default environment: its rounding mode and flush-to-zero change no byte. `callers` is
 * given back by fesetenv. */
static inline void th_default_floats(fenv_t *callers)
{
    fegetenv(callers);
    fesetenv(FE_DFL_ENV);
}

/* Mono samples at 44,100 Hz to codes [codebooks][*frames], freed with th_free; waits its turn and tells the engine's progress. */
thespis_status th_encode(thespis_engine *engine, const float *samples, size_t count, int32_t **codes, size_t *frames,
                         thespis_error *error);

#endif
