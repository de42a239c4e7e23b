/* temporary */
#include "cli/options.h"
#include "base/error.h"
thespis_status cli_voice_of(const struct cli_settings *settings, thespis_engine *engine, const char *name, thespis_voice **voice, thespis_error *error)
{
    (void)settings; (void)engine; *voice = NULL;
    return name == NULL ? THESPIS_OK : th_fail(error, THESPIS_INVALID, "voices by name are not there yet");
}
