#include "fetch/step.h"

void hx_fetch_step(const char *what)
{
    (void)what;
}
