// The attention of one stage, by role.
#pragma once

#include <array>
#include <memory>

#include "lib/attention/attention.h"

namespace diptych {

// self: rows attend to rows of their own sequence. cross: to another one, such as a text.
enum class AttentionRole { self, cross };
inline constexpr std::size_t kAttentionRoles = 2;
inline constexpr std::array kSelfAttention = {AttentionRole::self};

class StageBackends {
 public:
  StageBackends() = default;
  // One backend that serves every role.
  explicit StageBackends(const std::shared_ptr<AttentionBackend>& every) { backends_.fill(every); }

  void set(AttentionRole role, std::shared_ptr<AttentionBackend> backend) {
    backends_[static_cast<std::size_t>(role)] = std::move(backend);
  }
  // The backend that serves this role. Throws c10::Error for a role that was not set.
  const AttentionBackend& of(AttentionRole role) const {
    const auto& backend = backends_[static_cast<std::size_t>(role)];
    TORCH_CHECK(backend != nullptr, "[attention] no backend was made for ",
                role == AttentionRole::self ? "self" : "cross", "-attention of this stage");
    return *backend;
  }

 private:
  std::array<std::shared_ptr<AttentionBackend>, kAttentionRoles> backends_;
};

}  // namespace diptych
