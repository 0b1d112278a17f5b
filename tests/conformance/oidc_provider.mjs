// A provider of OpenID Connect: the npm package oidc-provider, for callers that are programs.
//
//     node oidc_provider.mjs <folder with node_modules> <port, or 0> <private keys as JWKs>
//
// Prints its issuer when it listens. Clients `ann` and `bob`, with the secret `secret`, get a token
// for whatever audience they name as `resource`.

import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [folder, port, keys] = process.argv.slice(2);
const found = createRequire(`${folder}/`).resolve('oidc-provider');
const { Provider } = await import(pathToFileURL(found).href);

const server = createServer();
server.listen(Number(port), '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    jwks: { keys: JSON.parse(keys) },
    clients: ['ann', 'bob'].map((name) => ({
      client_id: name,
      client_secret: 'secret',
      grant_types: ['client_credentials'],
      redirect_uris: [],
      response_types: [],
    })),
    scopes: ['run'],
    ttl: { ClientCredentials: 600 },
    extraTokenClaims: (_, token) => ({ tenant: 'acme', plan: `plan of ${token.clientId}` }),
    features: {
      clientCredentials: { enabled: true },
      devInteractions: { enabled: false },
      resourceIndicators: {
        enabled: true,
        getResourceServerInfo: (_, audience) => ({
          audience,
          scope: 'run',
          accessTokenFormat: 'jwt',
          accessTokenTTL: 600,
        }),
      },
    },
  });
  server.on('request', provider.callback());
  console.log(issuer);
});
