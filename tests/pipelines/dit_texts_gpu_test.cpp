#include "tests/pipelines/dit_texts_cases.h"

namespace diptych {

TEST_CASE("texts are encoded on the CPU where the GPU has no room, and take nothing of it") {
  dit_texts_cases::check_short_of_room({at::kCUDA, 0});
}

}  // namespace diptych
