//! What a method of the index answers when it does not do what it was asked.

/// Why a call was refused. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The request contradicts what is stored, or itself: a client's fault.
    Refused {
        code: Code,
        /// Position in the request of the page or hash.
        index: usize,
        message: String,
    },
    /// The arguments make no sense: the caller's fault.
    Value(String),
}

/// The kinds of refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    ParentAbsent,
    SizeMismatch,
    Malformed,
    Limit,
}

impl Code {
    pub fn name(self) -> &'static str {
        match self {
            Code::ParentAbsent => "parent_absent",
            Code::SizeMismatch => "size_mismatch",
            Code::Malformed => "malformed",
            Code::Limit => "limit",
        }
    }
}

pub type Result<T> = std::result::Result<T, Error>;

pub fn malformed<T>(index: usize, message: impl Into<String>) -> Result<T> {
    refused(Code::Malformed, index, message)
}

pub fn refused<T>(code: Code, index: usize, message: impl Into<String>) -> Result<T> {
    Err(Error::Refused { code, index, message: message.into() })
}

pub fn value<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::Value(message.into()))
}
