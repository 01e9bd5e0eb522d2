#include "lib/media/video/clip_write.h"

#include <utility>

#include "lib/base/atomic_file.h"
#include "lib/base/error.h"
#include "lib/media/video/clip_texts.h"
#include "lib/media/video/folder_write.h"
#include "lib/media/video/frame_encoder.h"
#include "lib/media/video/frame_queue.h"

namespace diptych {

class ClipEncoder::Work {
 public:
  Work(const ClipEncoding& encoding, ImageSize size)
      : encoder_(make_frame_encoder(encoding, size)),
        queue_(size, kQueuedFrames, [this](const Tensor& rgb) {
          encoder_->add({rgb.const_data_ptr<std::uint8_t>(), rgb.nbytes()});
        }) {}

  void add(const Tensor& frames) {
    queue_.add(frames);
    any_ = any_ || frames.numel() > 0;
  }
  std::vector<std::uint8_t> finish(const PictureTexts& texts) {
    TORCH_CHECK(any_, "[clip] no frame was added");
    queue_.finish();
    return encoder_->finish(texts);
  }

 private:
  std::unique_ptr<FrameEncoder> encoder_;
  FrameQueue queue_;
  bool any_ = false;
};

ClipEncoder::ClipEncoder(const ClipEncoding& encoding, ImageSize size)
    : work_(std::make_unique<Work>(encoding, size)) {}
ClipEncoder::~ClipEncoder() = default;
ClipEncoder::ClipEncoder(ClipEncoder&&) noexcept = default;
ClipEncoder& ClipEncoder::operator=(ClipEncoder&&) noexcept = default;

void ClipEncoder::add(const Tensor& frames) {
  work_->add(frames);
}

std::vector<std::uint8_t> ClipEncoder::finish(const PictureTexts& texts) {
  return work_->finish(texts);
}

class ClipWriter::Target {
 public:
  virtual ~Target() = default;
  virtual void add(const Tensor& frames) = 0;
  virtual void finish(const PictureTexts& texts) = 0;
};

namespace {

class FileTarget : public ClipWriter::Target {
 public:
  FileTarget(const std::filesystem::path& path, const ClipEncoding& encoding, ImageSize size)
      : encoder_(encoding, size), file_(path) {}

  void add(const Tensor& frames) override { encoder_.add(frames); }
  void finish(const PictureTexts& texts) override {
    const std::vector<std::uint8_t> bytes = encoder_.finish(texts);
    file_.write(bytes.data(), bytes.size());
    file_.commit();
  }

 private:
  ClipEncoder encoder_;
  AtomicFile file_;
};

class FolderTarget : public ClipWriter::Target {
 public:
  FolderTarget(const std::filesystem::path& path, const ClipEncoding& encoding, ImageSize size)
      : folder_(path, encoding.fps),
        queue_(size, ClipEncoder::kQueuedFrames, [this](const Tensor& rgb) { folder_.add(rgb); }) {
    require_writable_clip(encoding, size);
  }

  void add(const Tensor& frames) override { queue_.add(frames); }
  void finish(const PictureTexts& texts) override {
    queue_.finish();
    folder_.finish(texts);
  }

 private:
  FolderWriter folder_;
  FrameQueue queue_;
};

}  // namespace

ClipWriter::ClipWriter(const std::filesystem::path& path, const ClipEncoding& encoding,
                       ImageSize size) {
  if (encoding.format == ClipFormat::png) {
    target_ = std::make_unique<FolderTarget>(path, encoding, size);
  } else {
    target_ = std::make_unique<FileTarget>(path, encoding, size);
  }
}
ClipWriter::~ClipWriter() = default;
ClipWriter::ClipWriter(ClipWriter&&) noexcept = default;
ClipWriter& ClipWriter::operator=(ClipWriter&&) noexcept = default;

void ClipWriter::add(const Tensor& frames) {
  target_->add(frames);
}

void ClipWriter::finish(const PictureTexts& texts) {
  target_->finish(texts);
}

}  // namespace diptych
