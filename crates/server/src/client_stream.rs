//! Connections that notice when their client goes away.
//!
//! hyper reads nothing while a request is being answered once the next one, sent ahead of time, is in its
//! buffer. Without reading, nobody learns that the client has closed the connection, and its request would
//! run to the end.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::{Sleep, sleep};

/// Bytes that are read before hyper asks for them. A client that sends more requests ahead of their answers,
/// and goes away, is noticed when the answer is written.
const READ_AHEAD: usize = 16 << 10;

/// Reads of what is discarded before other connections have their turn.
const READS_AT_ONCE: usize = 16;

/// How long a client may go on sending after its last answer.
const LINGER: Duration = Duration::from_secs(2);

/// A connection that is read at every flush, which hyper asks for whenever it is polled. The end of what the
/// client sends is an error: closing one direction only is taken as leaving, as hyper does, too.
pub(crate) struct ClientStream<T> {
    stream: T,
    /// Bytes read ahead; those before `taken` were handed on.
    ahead: Vec<u8>,
    taken: usize,
    /// Set once the connection was shut down.
    linger: Option<Pin<Box<Sleep>>>,
    /// Whether the server is shutting down.
    stopped: watch::Receiver<bool>,
}

impl<T> ClientStream<T> {
    pub fn new(stream: T, stopped: watch::Receiver<bool>) -> ClientStream<T> {
        ClientStream { stream, ahead: Vec::new(), taken: 0, linger: None, stopped }
    }
}

impl<T: AsyncRead + Unpin> ClientStream<T> {
    /// Reads ahead, and fails if the client is gone.
    fn check_client(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.ahead.len() - self.taken >= READ_AHEAD {
            return Ok(());
        }
        let mut space = [MaybeUninit::uninit(); 2048];
        let mut buffer = ReadBuf::uninit(&mut space);
        match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
            Poll::Pending => Ok(()),
            Poll::Ready(Err(error)) => Err(error),
            Poll::Ready(Ok(())) if buffer.filled().is_empty() => {
                Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the client has left"))
            }
            Poll::Ready(Ok(())) => {
                self.ahead.extend_from_slice(buffer.filled());
                // hyper may wait for these bytes, and the socket has reported them already.
                context.waker().wake_by_ref();
                Ok(())
            }
        }
    }

    /// Discards what the client still sends: closing a socket with unread bytes resets the connection, and a
    /// client that is refused before its body was read would lose the answer that says why. Ends when the
    /// client closes, after [`LINGER`], or once nothing is to be read while the server shuts down: connections
    /// without a request do not delay that.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let linger = self.linger.get_or_insert_with(|| Box::pin(sleep(LINGER)));
        if linger.as_mut().poll(context).is_ready() {
            return Poll::Ready(Ok(()));
        }
        let mut space = [MaybeUninit::uninit(); 8192];
        // A client that sends without end does not keep the thread from other connections.
        for _ in 0..READS_AT_ONCE {
            let mut buffer = ReadBuf::uninit(&mut space);
            match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {}
                Poll::Pending if !*self.stopped.borrow() => return Poll::Pending,
                // The client is gone, or the server shuts down.
                _ => return Poll::Ready(Ok(())),
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for ClientStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let count = buffer.remaining().min(self.ahead.len() - self.taken);
        buffer.put_slice(&self.ahead[self.taken..self.taken + count]);
        self.taken += count;
        if self.taken == self.ahead.len() {
            self.ahead.clear();
            self.taken = 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ClientStream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        Poll::Ready(self.check_client(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
        }
        self.poll_linger(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn stopped(stopped: bool) -> watch::Receiver<bool> {
        watch::channel(stopped).1
    }

    #[tokio::test]
    async fn what_was_read_ahead_is_not_lost() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut stream = ClientStream::new(near, stopped(false));
        far.write_all(b"one").await.unwrap();
        stream.flush().await.unwrap();
        far.write_all(b" two").await.unwrap();
        let mut found = [0; 7];
        stream.read_exact(&mut found[..2]).await.unwrap();
        stream.flush().await.unwrap();
        stream.read_exact(&mut found[2..]).await.unwrap();
        assert_eq!(&found, b"one two");
    }

    #[tokio::test]
    async fn a_client_that_leaves_ends_the_connection() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut stream = ClientStream::new(near, stopped(false));
        stream.flush().await.unwrap();
        far.write_all(b"the next request").await.unwrap();
        drop(far);
        stream.flush().await.unwrap();
        let error = stream.flush().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_after_the_last_answer_is_discarded_for_a_while() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut stream = ClientStream::new(near, stopped(false));
        let begun = tokio::time::Instant::now();
        let sending = tokio::spawn(async move {
            // Nothing is on its way when the connection is shut down.
            sleep(LINGER / 2).await;
            far.write_all(&[0; 1000]).await.unwrap();
        });
        stream.shutdown().await.unwrap();
        assert!(sending.await.is_ok(), "the client could not send all");
        assert!(begun.elapsed() < LINGER, "the client had closed its side");
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_client_is_waited_for_until_the_server_shuts_down() {
        for (stopping, time) in [(false, LINGER), (true, Duration::ZERO)] {
            let (near, _far) = tokio::io::duplex(64);
            let begun = tokio::time::Instant::now();
            ClientStream::new(near, stopped(stopping)).shutdown().await.unwrap();
            let took = begun.elapsed();
            assert!(took >= time && took < time + Duration::from_millis(100), "{took:?}");
        }
    }
}
