#include "tests/pipelines/dit_texts_cases.h"

namespace diptych {

TEST_CASE("texts are encoded alike with room and without it") {
  dit_texts_cases::check_short_of_room(at::kCPU);
}

}  // namespace diptych
