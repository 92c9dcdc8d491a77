#include "core/planted.h"

#if defined(TILEWISE_PLANTED_DEFECTS)
namespace tilewise {
Defect planted_defect = Defect::kNone;
}
#endif
