// A build without CUDA.
#include "lib/pipelines/mot/text_decoder_cuda.h"

namespace diptych {

std::unique_ptr<TextDecoder> make_graph_decoder(const MotBackbone&, std::int64_t, const Runtime&) {
  return nullptr;
}

}  // namespace diptych
